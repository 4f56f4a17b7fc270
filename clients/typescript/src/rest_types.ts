// Generated from the OpenAPI document of the engine by `uv run python scripts/typescript_types.py`. Do not edit.

/** The branch to switch to. */
export interface ActiveBranch {
  name: string;
}

/**
 * Structured progress that is not conversation content, materialised as a
 * message so it keeps its place in the sequence. Stands alone rather than
 * composing BaseMessage, because its content is an object rather than a
 * string.
 */
export interface ActivityMessage {
  subagentRunId?: string | null;
  id: string;
  role?: "activity";
  activityType: string;
  content: Record<string, unknown>;
  metadata?: Record<string, unknown> | null;
  [name: string]: unknown;
}

/**
 * A typed, categorized snapshot of an agent's current capabilities. All
 * fields are optional — agents only declare what they support. An omitted
 * field means the capability is not declared (unknown), not that it is
 * unsupported. The custom field is an escape hatch for
 * integration-specific capabilities that do not fit into the standard
 * categories.
 */
export interface AgentCapabilities {
  identity?: IdentityCapabilities | null;
  transport?: TransportCapabilities | null;
  tools?: ToolsCapabilities | null;
  output?: OutputCapabilities | null;
  state?: StateCapabilities | null;
  multiAgent?: MultiAgentCapabilities | null;
  reasoning?: ReasoningCapabilities | null;
  multimodal?: MultimodalCapabilities | null;
  execution?: ExecutionCapabilities | null;
  humanInTheLoop?: HumanInTheLoopCapabilities | null;
  custom?: Record<string, unknown> | null;
  [name: string]: unknown;
}

/** The agents of this server. */
export interface AgentList {
  agents: AgentView[];
}

/** A hosted agent: what it can do, and in `limits` what it cannot. */
export interface AgentView {
  name: string;
  description: string;
  capabilities: Record<string, boolean>;
  limits: string[];
  url: string;
}

/**
 * A call an assistant message made. Carries no subagent attribution of its
 * own and inherits its containing message's, since several calls can share
 * one parent.
 */
export interface AguiToolCall {
  id: string;
  type?: "function";
  function: FunctionCall;
  encryptedValue?: string | null;
  metadata?: Record<string, unknown> | null;
  [name: string]: unknown;
}

/**
 * The answer to each open question by the id of the question: any JSON value, which the agent receives.
 *
 * `response_schema` of a question says what its agent expects. All open questions must be answered at once.
 */
export interface Answers {
  answers: Record<string, unknown>;
}

/** The result of an append. */
export interface Appended {
  id: string;
  sequence_num: number;
  version: number;
  created_at: string;
}

/** The decision of the person. */
export interface ApprovalAnswer {
  approved: boolean;
  reason?: string | null;
}

/** The open requests of a context. */
export interface ApprovalList {
  approvals: ApprovalView[];
}

/** A request to a person; `approved` is null until it is answered. */
export interface ApprovalView {
  approval_id: string;
  tool_name: string;
  tool_input: unknown;
  tool_call_id: string | null;
  message: string | null;
  run_id: string | null;
  approved: boolean | null;
  asked_at: string | null;
}

/**
 * A message from the agent. Content is optional because a turn may consist
 * only of tool calls.
 */
export interface AssistantMessage {
  subagentRunId?: string | null;
  id: string;
  role?: "assistant";
  name?: string | null;
  encryptedValue?: string | null;
  metadata?: Record<string, unknown> | null;
  content?: string | null;
  toolCalls?: AguiToolCall[] | null;
  [name: string]: unknown;
}

/** A page of attachments; `next_cursor` is null on the last one. */
export interface AttachmentPage {
  attachments: AttachmentView[];
  next_cursor: string | null;
}

/** An attachment. `part` is the part of an AG-UI message that refers to it. */
export interface AttachmentView {
  id: string;
  name: string;
  mime_type: string;
  size: number;
  sha256: string;
  created_at: string;
  url: string;
  part: Record<string, unknown>;
}

/** An audio part. */
export interface AudioPart {
  type?: "audio";
  id?: string | null;
  source: DataSource | UrlSource | FileSource;
  metadata?: unknown;
  [name: string]: unknown;
}

/** The number of background tasks, and those that fail now. */
export interface BackgroundView {
  tasks: number;
  failing: FailingTaskView[];
}

/** A range of numbers or of texts. */
export interface Bounds {
  gt?: number | string | null;
  gte?: number | string | null;
  lt?: number | string | null;
  lte?: number | string | null;
}

/** The branches of a context. */
export interface BranchList {
  branches: BranchView[];
}

/**
 * A page of a branch, oldest first. If `has_more`, continue `after` its `last_sequence`; if `has_earlier`,
 * `before` its `first_sequence`.
 */
export interface BranchMessagesView {
  messages: ContextMessageView[];
  branch: string;
  offset: number;
  total: number;
  has_more: boolean;
  has_earlier: boolean;
  first_sequence: number | null;
  last_sequence: number | null;
}

/** The state at the tip of a branch. */
export interface BranchStateView {
  state: Record<string, unknown>;
  version: number;
  sequence_num: number;
}

/** A branch. `tip_sequence` is its newest event; `main` has neither a parent nor a fork. */
export interface BranchView {
  name: string;
  parent: string | null;
  forked_at: number | null;
  tip_sequence: number;
  is_active: boolean;
  created_at: string | null;
}

/** A caller. Without apps it is for all apps; without a user it may act for any user. */
export interface CallerView {
  name: string;
  permissions: string[];
  app_names: string[] | null;
  user_id: string | null;
  expires_at: string | null;
}

/** Whether a run was cancelled; false when none was active. */
export interface CancelledRun {
  cancelled: boolean;
}

/** The state of the context, and the runs that were active. */
export interface CancelledView {
  current_state: string;
  run_ids: string[];
}

/** The conversation with the agent's answer, and the run that wrote it. */
export interface ChatView {
  conversationId: string;
  timeline: Record<string, unknown>[];
  total: number;
  hasMore: boolean;
  firstSequence: number | null;
  lastSequence: number | null;
  runId: string;
  status: string;
  error: string | null;
}

/** One delta of a message. */
export interface ChunkView {
  sequence: number;
  delta: string;
}

/** The chunks of a message that exist now. */
export interface ChunksView {
  context_id: string;
  message_id: string;
  chunks: ChunkView[];
  current_sequence: number;
  has_more: boolean;
  status: string;
}

/** Why the model stopped. */
export interface Completion {
  finish_reason?: string | null;
}

/** The thread to connect to. A complete RunAgentInput is accepted: clients send it on every call. */
export interface Connection {
  threadId: string;
  runId?: string;
  protocolVersion?: string | null;
  [name: string]: unknown;
}

/**
 * A named piece of ambient information given to the agent for the run,
 * distinct from the conversation.
 */
export interface Context {
  description: string;
  value: string;
  [name: string]: unknown;
}

/** A part of a context; `citation` names it in the text. */
export interface ContextItemView {
  section: string;
  citation: string;
  text: string;
  created_at: string | null;
  memory_id: string | null;
  kind: "long_term" | "episodic" | "turn" | "note" | null;
  visibility: "user" | "agent" | "app" | null;
  session_id: string | null;
  event_id: string | null;
  score: number | null;
}

/** A message, a tool call or a result. One that is being streamed has no content here: pull its chunks. */
export interface ContextMessageView {
  id: string;
  role: string;
  content: unknown;
  /** `{id, name, arguments}` of each call */
  tool_calls: Record<string, unknown>[] | null;
  /** `{tool_call_id, tool_name, content, is_error}` */
  tool_result: Record<string, unknown> | null;
  message_type: string;
  status: string;
  sequence_num: number | null;
  final_sequence: number | null;
  created_at: string | null;
}

/**
 * The subject of a prompt, the filters of its memories, and the budget of its context in tokens.
 *
 * The first 10 000 characters of the query are searched.
 */
export interface ContextQuestion {
  app_name: string;
  user_id: string;
  query: string;
  session_id?: string | null;
  agent_id?: string | null;
  budget_tokens?: number;
  recent_turns?: number;
  k?: number;
  min_score?: number;
  half_life_days?: number | null;
  kinds?: ("long_term" | "episodic" | "turn" | "note")[] | null;
  namespace?: string | null;
  since?: string | null;
  until?: string | null;
  tags?: string[] | null;
  metadata?: Record<string, Bounds | string | number | boolean | (string | number | boolean | null)[] | null> | null;
  visibility?: ("user" | "agent" | "app")[];
}

/** A context, without its content. */
export interface ContextView {
  id: string;
  current_state: string;
  active_branch_name: string;
  message_count: number;
  model_id: unknown;
  mode: unknown;
  system_prompt_id: unknown;
  workspace_path: unknown;
  title: string | null;
  session_id: string;
  app_name: string;
  user_id: string;
  last_sequence: number;
  created_at: string;
  updated_at: string;
}

export interface CreatedWebhook {
  id: string;
  app_name: string;
  url: string;
  events: string[];
  created_at: string;
  waiting: number;
  dead: number;
  /** The key of the signatures. It is not shown again. */
  secret: string;
}

/** Bytes carried inline. */
export interface DataSource {
  type?: "data";
  value: string;
  mimeType: string;
  [name: string]: unknown;
}

export interface DeadLetterPage {
  dead_letters: DeadLetterView[];
  next_cursor: string | null;
}

export interface DeadLetterView {
  id: string;
  webhook_id: string;
  app_name: string;
  thread_id: string;
  run_id: string;
  event: string;
  payload: unknown;
  attempts: number;
  last_error: string | null;
  created_at: string;
  dead_at: string;
}

/** The backend of token deltas, and whether it answers. */
export interface DeltasView {
  carried_by: "redis" | "postgresql";
  status: string;
}

/** Instructions from the application developer. */
export interface DeveloperMessage {
  subagentRunId?: string | null;
  id: string;
  role?: "developer";
  name?: string | null;
  encryptedValue?: string | null;
  metadata?: Record<string, unknown> | null;
  content: string;
  [name: string]: unknown;
}

/** A document part. */
export interface DocumentPart {
  type?: "document";
  id?: string | null;
  source: DataSource | UrlSource | FileSource;
  metadata?: unknown;
  [name: string]: unknown;
}

/** Which memories to compare. Without an agent those of all agents. */
export interface DuplicatesToMerge {
  app_name: string;
  user_id: string;
  agent_id?: string;
  kinds?: ("long_term" | "episodic" | "turn" | "note")[];
  similarity?: number;
}

/** The number of the last chunk of the message. */
export interface EndedStreamView {
  final_sequence: number;
}

/** A run that a worker executes. */
export interface EnqueuedRun {
  run_id: string;
  thread_id: string;
}

/** An episode. */
export interface Episode {
  id: string;
  app_name: string;
  user_id: string;
  agent_id: string;
  session_id: string | null;
  run_id: string | null;
  summary: string;
  payload: Record<string, unknown>;
  created_at: string;
}

/** Episodes, newest first. `has_more`: the next page has the offset of this one plus its entries. */
export interface Episodes {
  entries: Episode[];
  has_more: boolean;
}

/** The number of deleted rows per table; of `audit_log`, the entries that now have a pseudonym. */
export interface Erased {
  rows: Record<string, number>;
}

/** An event that a fact came from. */
export interface EventOfFact {
  session_id: string;
  event_id: string;
}

/** Events, oldest first. `has_more`: there are events after the page; `has_earlier`: before it. */
export interface EventPage {
  events: EventView[];
  last_sequence: number;
  has_more: boolean;
  has_earlier: boolean;
}

/** A stored event. */
export interface EventView {
  id: string;
  sequence_num: number;
  version: number;
  created_at: string;
  thread_id: string;
  run_id: string | null;
  invocation_id: string;
  author: string;
  event_type: string;
  /** A text, a list of parts, or what another kind of event holds. Unknown keys are stored. */
  content: {
    text: string;
    /** `user`, `assistant`, `system` or `tool`; else the author decides. */
    role?: string;
    /** The message that the event completes. */
    message_id?: string;
    [name: string]: unknown;
  } | {
    parts: {
      text?: string;
      /** The text is a thought of the model. */
      thought?: boolean;
      /** `{id, name, args}` of a tool call. */
      function_call?: Record<string, unknown>;
      /** `{id, name, response}` of a tool. */
      function_response?: Record<string, unknown>;
      [name: string]: unknown;
    }[];
    /** `user`, `assistant`, `system` or `tool`; else the author decides. */
    role?: string;
    /** The message that the event completes. */
    message_id?: string;
    [name: string]: unknown;
  } | Record<string, unknown>;
  /** What an event does. Unknown keys are stored. */
  actions: {
    /** Keys to set, with the prefix of their scope; `{"$delete": true}` deletes a key. */
    state_delta?: Record<string, unknown>;
    [name: string]: unknown;
  };
}

/**
 * Execution control and limits. Declare these so clients can set
 * expectations about how long or how many steps an agent run might take.
 */
export interface ExecutionCapabilities {
  codeExecution?: boolean | null;
  sandboxed?: boolean | null;
  maxIterations?: number | null;
  maxExecutionTime?: number | null;
  [name: string]: unknown;
}

/** A long-term fact. */
export interface Fact {
  agent_id: string;
  namespace: string;
  key: string;
  value: unknown;
  text: string;
  created_at: string;
  updated_at: string;
}

/** The values of a key, newest first. */
export interface FactHistory {
  versions: FactVersionView[];
}

/** A value of a key and the events that it came from; `valid_until` is null for the current one. */
export interface FactVersionView {
  value: unknown;
  text: string;
  valid_from: string;
  valid_until: string | null;
  sources: EventOfFact[];
}

/** Long-term facts, newest change first. `has_more`: the next page has the offset of this one plus its entries. */
export interface Facts {
  entries: Fact[];
  has_more: boolean;
}

/** A background task whose last round failed, and its number of restarts. */
export interface FailingTaskView {
  name: string;
  error: string;
  restarts: number;
}

/** Why a run failed. */
export interface Failure {
  error: string;
}

/**
 * Bytes already at the provider, named by a handle the provider issued: an
 * OpenAI or Anthropic file id, a Gemini file URI, a storage URL only that
 * provider can read. No bytes travel and nothing is fetched. Only the
 * provider that minted the handle can resolve it; a peer that cannot drops
 * the part as it drops any part it cannot use.
 */
export interface FileSource {
  type?: "file";
  value: string;
  provider?: string | null;
  mimeType?: string | null;
  [name: string]: unknown;
}

/** The newest firings; a firing is stored as long as its run. */
export interface FiringPage {
  firings: FiringView[];
}

export interface FiringView {
  due_at: string;
  fired_at: string;
  thread_id: string;
  run_id: string;
  status: string;
}

/** The event after which to fork; by default the newest. */
export interface Fork {
  at_sequence?: number | null;
  session_id?: string | null;
}

/** Messages by their ids. If `has_more`, ask again for the ids after the last one. */
export interface FoundMessagesView {
  messages: ContextMessageView[];
  requested_count: number;
  found_count: number;
  has_more: boolean;
}

/** Runs of all threads. */
export interface FoundRuns {
  runs: ListedRun[];
  next_cursor: string | null;
}

/** The name and arguments of a tool call. */
export interface FunctionCall {
  name: string;
  arguments: string;
  [name: string]: unknown;
}

/** The state of the engine. `database` and `deltas.status` are `ok` or the reason why they are not. */
export interface HealthView {
  status: "ok" | "degraded" | "unavailable";
  listener_running: boolean;
  database: string;
  deltas: DeltasView;
  server: "embedded" | "external";
  maintenance: string;
  pool: PoolView;
  background: BackgroundView;
  conflicts: number;
}

/** A memory that was recalled, with a score from 0 to 1, its parts, and the reasons in words. */
export interface HitView {
  id: string;
  agent_id: string;
  kind: "long_term" | "episodic" | "turn" | "note";
  namespace: string;
  source_id: string;
  session_id: string | null;
  author: string | null;
  text: string;
  content: unknown;
  created_at: string;
  tags: string[];
  metadata: Record<string, unknown>;
  importance: number | null;
  expires_at: string | null;
  visibility: "user" | "agent" | "app";
  score: number;
  scores: Record<string, number>;
  why: string;
}

/** Recalled memories, best first; the list ends at `COGNIZES_PAGE_BYTES`. */
export interface Hits {
  hits: HitView[];
}

/**
 * Human-in-the-loop interaction support. Enable these when your agent can
 * pause execution to request human input, approval, or feedback before
 * continuing.
 */
export interface HumanInTheLoopCapabilities {
  supported?: boolean | null;
  approvals?: boolean | null;
  interventions?: boolean | null;
  feedback?: boolean | null;
  interrupts?: boolean | null;
  approveWithEdits?: boolean | null;
  [name: string]: unknown;
}

/**
 * Basic metadata about the agent. Useful for discovery UIs, agent
 * marketplaces, and debugging. Set these when you want clients to display
 * agent information or when multiple agents are available and users need
 * to pick one.
 */
export interface IdentityCapabilities {
  name?: string | null;
  type?: string | null;
  description?: string | null;
  version?: string | null;
  provider?: string | null;
  documentationUrl?: string | null;
  metadata?: Record<string, unknown> | null;
  [name: string]: unknown;
}

/** An image part. */
export interface ImagePart {
  type?: "image";
  id?: string | null;
  source: DataSource | UrlSource | FileSource;
  metadata?: unknown;
  [name: string]: unknown;
}

/** `concurrency` limits the running runs, `rate` the claims per `per_seconds`; at least one is given. */
export interface Limits {
  concurrency?: number | null;
  rate?: number | null;
  per_seconds?: number;
}

/** A run; `usage` is missing unless it was asked for. */
export interface ListedRun {
  id: string;
  thread_id: string;
  app_name: string;
  status: string;
  thinking_steps: unknown[];
  tool_calls: unknown[];
  error: string | null;
  created_at: string;
  started_at: string | null;
  completed_at: string | null;
  handler: string | null;
  input: unknown;
  result: unknown;
  worker_id: string | null;
  attempt: number;
  failures: number;
  max_attempts: number;
  available_at: string | null;
  lease_expires_at: string | null;
  queue: string | null;
  priority: number;
  /** The position in a trace at which the run was created (W3C). */
  traceparent: string | null;
  wait: WaitView | null;
  usage?: RunTotals | null;
}

/** The process serves requests. */
export interface LiveView {
  status: "ok";
}

/** The name of a long-term memory. */
export interface LongTermKeyView {
  namespace?: string;
  key: string;
}

/** Memories, newest first; `next_before` is the value of `before` for the next page. */
export interface Memories {
  memories: MemoryView[];
  next_before: string | null;
}

/** The memories that came from an event. */
export interface MemoriesOfEvent {
  memories: MemoryView[];
}

/** The memory of the agent when its run started to wait. */
export interface MemorySnapshotView {
  id: string;
  /** `{agent_id, session_id, messages, variables, tool_calls, scratchpad, last_checkpoint, updated_at}` */
  working_memory: Record<string, unknown>;
  episodic_tail: Record<string, unknown>[];
  long_term_keys: LongTermKeyView[];
  snapshot_at: string | null;
}

/** A memory. */
export interface MemoryView {
  id: string;
  agent_id: string;
  kind: "long_term" | "episodic" | "turn" | "note";
  namespace: string;
  source_id: string;
  session_id: string | null;
  author: string | null;
  text: string;
  content: unknown;
  created_at: string;
  tags: string[];
  metadata: Record<string, unknown>;
  importance: number | null;
  expires_at: string | null;
  visibility: "user" | "agent" | "app";
}

/** The number of memories that recall no longer returns. */
export interface Merged {
  merged: number;
}

/** A message that was found, with a score from 0 to 1, its parts, and the reasons in words. */
export interface MessageHitView {
  id: string;
  event_id: string;
  sequence_num: number;
  role: string;
  content: string;
  metadata: Record<string, unknown>;
  created_at: string;
  thread_id: string;
  app_name: string;
  user_id: string;
  session_id: string;
  score: number;
  scores: Record<string, number>;
  why: string;
}

/** Found messages, best first; the list ends at `COGNIZES_PAGE_BYTES`. */
export interface MessageHits {
  hits: MessageHitView[];
}

/** Messages, oldest first, and whether there are later ones. */
export interface MessagePage {
  messages: MessageView[];
  has_more: boolean;
}

/** Which messages to find: of a whole app, of a user, or of one session of a user. */
export interface MessageQuestion {
  app_name: string;
  user_id?: string | null;
  session_id?: string | null;
  query: string;
  k?: number;
  min_score?: number;
  roles?: ("user" | "assistant" | "tool" | "system")[] | null;
  since?: string | null;
  until?: string | null;
}

/** A message. */
export interface MessageView {
  id: string;
  event_id: string;
  sequence_num: number;
  role: string;
  content: string;
  metadata: Record<string, unknown>;
  created_at: string;
}

/** A page of AG-UI messages, oldest first. If `hasMore`, the older page begins at the cursor `before`. */
export interface MessagesView {
  messages: Record<string, unknown>[];
  hasMore: boolean;
  before: number | null;
}

/** The newest messages that fit, oldest first, in the format of chat models. */
export interface ModelInputView {
  context_id: string;
  /** `{role, content, tool_calls, tool_call_id}` of each message */
  messages: Record<string, unknown>[];
  estimated_tokens: number;
  is_truncated: boolean;
}

/** The calls of one model. Cached and reasoning tokens are parts of the totals; `cost` is null without a price. */
export interface ModelUsageView {
  model: string;
  calls: number;
  input_tokens: number;
  output_tokens: number;
  total_tokens: number;
  cached_tokens: number;
  cache_write_tokens: number;
  reasoning_tokens: number;
  cost: number | null;
}

/**
 * Multi-agent coordination capabilities. Enable these when your agent can
 * orchestrate or hand off work to other agents.
 */
export interface MultiAgentCapabilities {
  supported?: boolean | null;
  delegation?: boolean | null;
  handoffs?: boolean | null;
  subagents?: SubagentInfo[] | null;
  [name: string]: unknown;
}

/**
 * Multimodal input and output support. Organized into input and output
 * sub-objects so clients can independently query what the agent accepts
 * versus what it produces.
 */
export interface MultimodalCapabilities {
  input?: MultimodalInputCapabilities | null;
  output?: MultimodalOutputCapabilities | null;
  [name: string]: unknown;
}

/**
 * Modalities the agent can accept as input. Clients use this to show or
 * hide file upload buttons, audio recorders, image pickers, etc.
 */
export interface MultimodalInputCapabilities {
  image?: boolean | null;
  audio?: boolean | null;
  video?: boolean | null;
  pdf?: boolean | null;
  file?: boolean | null;
  [name: string]: unknown;
}

/**
 * Modalities the agent can produce as output. Clients use this to
 * anticipate rich content in the agent's response.
 */
export interface MultimodalOutputCapabilities {
  image?: boolean | null;
  audio?: boolean | null;
  [name: string]: unknown;
}

/** A tool call that needs the approval of a person. */
export interface NewApproval {
  tool_name: string;
  tool_input?: unknown;
  tool_call_id?: string | null;
  message?: string | null;
  run_id?: string | null;
  approval_id?: string | null;
}

/** A branch that forks after an event, or at the newest one. */
export interface NewBranch {
  name: string;
  at_sequence?: number | null;
}

/** The message of the user, and the ids of attachments of the conversation that belong to it. */
export interface NewChat {
  message: string;
  attachments?: string[];
}

/** Consecutive chunks from `first_sequence` on; the first chunk of a message is 1. */
export interface NewChunks {
  first_sequence: number;
  deltas: string[];
}

/** What a context starts with. */
export interface NewContext {
  app_name: string;
  user_id: string;
  session_id?: string | null;
  title?: string | null;
  model_id?: string | null;
  mode?: string | null;
  system_prompt_id?: string | null;
  workspace_path?: string | null;
}

/** An episode. An id that exists changes nothing. */
export interface NewEpisode {
  app_name: string;
  user_id: string;
  agent_id?: string;
  summary: string;
  id?: string;
  session_id?: string | null;
  run_id?: string | null;
  payload?: Record<string, unknown>;
  created_at?: string | null;
}

/** An event to append. `actions.state_delta` changes state; `{"$delete": true}` as a value deletes the key. */
export interface NewEvent {
  id?: string | null;
  author: string;
  event_type: string;
  /** A text, a list of parts, or what another kind of event holds. Unknown keys are stored. */
  content?: {
    text: string;
    /** `user`, `assistant`, `system` or `tool`; else the author decides. */
    role?: string;
    /** The message that the event completes. */
    message_id?: string;
    [name: string]: unknown;
  } | {
    parts: {
      text?: string;
      /** The text is a thought of the model. */
      thought?: boolean;
      /** `{id, name, args}` of a tool call. */
      function_call?: Record<string, unknown>;
      /** `{id, name, response}` of a tool. */
      function_response?: Record<string, unknown>;
      [name: string]: unknown;
    }[];
    /** `user`, `assistant`, `system` or `tool`; else the author decides. */
    role?: string;
    /** The message that the event completes. */
    message_id?: string;
    [name: string]: unknown;
  } | Record<string, unknown>;
  /** What an event does. Unknown keys are stored. */
  actions?: {
    /** Keys to set, with the prefix of their scope; `{"$delete": true}` deletes a key. */
    state_delta?: Record<string, unknown>;
    [name: string]: unknown;
  };
  invocation_id?: string | null;
  run_id?: string | null;
  expected_version?: number | null;
}

/** A key to set. Recall searches `text`: by default key and value; an empty text is not recalled. */
export interface NewFact {
  app_name: string;
  user_id: string;
  agent_id?: string;
  namespace?: string;
  key: string;
  value?: unknown;
  text?: string | null;
}

/** How long a client may execute a run without a heartbeat or progress of the run; then the run is released. */
export interface NewLease {
  lease_seconds?: number;
}

/** A whole message: a text, or parts such as `{"type": "text", "text": …}`. */
export interface NewMessage {
  role: "user" | "assistant" | "system" | "tool";
  content: string | Record<string, unknown>[];
  message_id?: string | null;
  run_id?: string | null;
}

/** A text to be recalled later. A `source_id` is stored once, with its newest text. */
export interface NewNote {
  source_id: string;
  text: string;
  session_id?: string | null;
  position?: number;
  author?: string | null;
  namespace?: string;
  content?: unknown;
  created_at?: string | null;
  tags?: string[];
  metadata?: Record<string, string | number | boolean | (string | number | boolean | null)[] | null>;
  importance?: number | null;
  expires_at?: string | null;
  sources?: SourceName[];
}

/** Texts to be recalled later; `turn` for messages of a session, `note` for any other text. */
export interface NewNotes {
  app_name: string;
  user_id: string;
  agent_id?: string;
  kind?: "turn" | "note";
  memories: NewNote[];
}

/**
 * A run, under an id of the caller's or a new one. With a `handler` it is pending, for the workers that have the
 * handler, from `available_at` on. Without one the caller executes it: `start` makes it running at once, with a lease
 * of `lease_seconds`.
 */
export interface NewRun {
  lease_seconds?: number;
  run_id?: string | null;
  start?: boolean;
  handler?: string | null;
  input?: unknown;
  max_attempts?: number | null;
  available_at?: string | null;
  queue?: string | null;
  priority?: number;
}

/**
 * A schedule: either `cron` in `timezone`, or `every_seconds`. Its runs belong to the thread `thread_id`, or each
 * to a new session of the user.
 */
export interface NewSchedule {
  app_name: string;
  user_id: string;
  handler: string;
  cron?: string | null;
  every_seconds?: number | null;
  timezone?: string;
  thread_id?: string | null;
  name?: string | null;
  input?: unknown;
  catch_up?: "skip" | "one" | "all";
  catch_up_limit?: number;
  max_attempts?: number | null;
  queue?: string | null;
  priority?: number;
}

export interface NewSecret {
  /** The new key of the signatures. It is not shown again. */
  secret: string;
}

/** A session to create. */
export interface NewSession {
  app_name: string;
  user_id: string;
  session_id?: string | null;
  state?: Record<string, unknown> | null;
  title?: string | null;
  metadata?: Record<string, unknown> | null;
}

/** Texts for all users of an app or of one agent. Without `agent_id` the agent has the name of the app. */
export interface NewSharedNotes {
  app_name: string;
  visibility: "agent" | "app";
  agent_id?: string;
  memories: NewNote[];
}

/** A signal for a waiting run. */
export interface NewSignal {
  correlation_key: string;
  payload?: unknown;
}

/** A message that will be sent in chunks. */
export interface NewStream {
  role?: "user" | "assistant" | "system" | "tool";
  message_id?: string | null;
  run_id?: string | null;
}

/** The tokens of one call of a model, under an id that is unique in the session. */
export interface NewUsage {
  /** The id of the response; the same id counts once. */
  id: string;
  model: string;
  input_tokens?: number;
  output_tokens?: number;
  /** Part of input_tokens. */
  cached_tokens?: number;
  /** Part of input_tokens. */
  cache_write_tokens?: number;
  /** Part of output_tokens. */
  reasoning_tokens?: number;
  run_id?: string | null;
}

/**
 * What a running run waits for, and what it wants back. A memory snapshot of the session is stored with it;
 * `long_term_keys` are the long-term keys that the run has used.
 */
export interface NewWait {
  kind: "webhook" | "human" | "timer" | "signal" | "message";
  correlation_key: string;
  reason?: string | null;
  expires_at?: string | null;
  timeout_node?: string | null;
  cursor_node?: string | null;
  plan_decision_id?: string | null;
  payload_results?: Record<string, unknown>;
  long_term_keys?: LongTermKeyView[];
}

/** A URL with https and a public address, and the events that it is called for. */
export interface NewWebhook {
  app_name: string;
  url: string;
  events?: ("waiting" | "failed" | "completed")[];
}

/** The working memory of an agent in a session. */
export interface NewWorkingMemory {
  app_name: string;
  user_id: string;
  agent_id?: string;
  session_id: string;
  messages?: Record<string, unknown>[];
  variables?: Record<string, unknown>;
  tool_calls?: Record<string, unknown>[];
  scratchpad?: unknown;
  last_checkpoint?: Record<string, unknown> | null;
}

/** The id under which chunks are sent. */
export interface OpenedStreamView {
  message_id: string;
}

/**
 * Output format support. Enable structuredOutput when your agent can
 * return responses conforming to a JSON schema, which is useful for
 * programmatic consumption.
 */
export interface OutputCapabilities {
  structuredOutput?: boolean | null;
  supportedMimeTypes?: string[] | null;
  [name: string]: unknown;
}

/** The connections of the process to PostgreSQL. */
export interface PoolView {
  size: number;
  idle: number;
  max: number;
}

/** The body of every error. */
export interface Problem {
  type?: string;
  title: string;
  status: number;
  detail: string;
  request_id: string;
  expected?: number | null;
  actual?: number | null;
  errors?: Record<string, unknown>[] | null;
}

/** The text of a context, its items in the order of the text, and the number of items that did not fit. */
export interface PromptContext {
  text: string;
  items: ContextItemView[];
  tokens: number;
  left_out: number;
}

/** A query and the filters of the memories that it may return. */
export interface Question {
  app_name: string;
  user_id: string;
  query: string;
  agent_id?: string | null;
  k?: number;
  min_score?: number;
  half_life_days?: number | null;
  kinds?: ("long_term" | "episodic" | "turn" | "note")[] | null;
  namespace?: string | null;
  since?: string | null;
  until?: string | null;
  tags?: string[] | null;
  metadata?: Record<string, Bounds | string | number | boolean | (string | number | boolean | null)[] | null> | null;
  visibility?: ("user" | "agent" | "app")[];
}

export interface QueueList {
  queues: QueueView[];
}

export interface QueueView {
  name: string;
  concurrency: number | null;
  rate: number | null;
  per_seconds: number;
  running: number;
  pending: number;
}

/**
 * Reasoning and thinking capabilities. Enable these when your agent
 * exposes its internal thought process (e.g., chain-of-thought, extended
 * thinking).
 */
export interface ReasoningCapabilities {
  supported?: boolean | null;
  streaming?: boolean | null;
  encrypted?: boolean | null;
  [name: string]: unknown;
}

/**
 * A span of the agent's reasoning, materialised as a message. Stands alone
 * rather than composing BaseMessage, because it carries no name.
 */
export interface ReasoningMessage {
  subagentRunId?: string | null;
  id: string;
  role?: "reasoning";
  content: string;
  encryptedValue?: string | null;
  metadata?: Record<string, unknown> | null;
  [name: string]: unknown;
}

/** Whether the call was counted; false when its id was counted before. */
export interface Recorded {
  is_new: boolean;
}

/** An answer to one interrupt, sent on the run that continues from it. */
export interface ResumeEntry {
  interruptId: string;
  status: "resolved" | "cancelled";
  payload?: unknown;
  metadata?: Record<string, unknown> | null;
  [name: string]: unknown;
}

/** What a run stored with its last wait. */
export interface ResumptionContextView {
  payload_results: Record<string, unknown>;
  plan_decision_id: string | null;
  cursor_node: string | null;
  memory_snapshot: MemorySnapshotView | null;
}

/**
 * What a run continues with after its last wait. `payload_results` has the payload of every wait that is over, by
 * its correlation key. `kept_keys` are the state keys that another writer changed after the memory snapshot was
 * taken: they keep the newer value.
 */
export interface ResumptionView {
  kind: string;
  correlation_key: string;
  payload: unknown;
  timed_out: boolean;
  payload_results: Record<string, unknown>;
  plan_decision_id: string | null;
  cursor_node: string | null;
  kept_keys: string[];
}

/**
 * A request to run an agent. Also echoed back as RUN_STARTED.input. Only
 * threadId, runId and messages are required: those are the three the SDKs
 * already agree on, and for tools and context an absent key and an empty
 * array mean the same thing, so requiring them would catch nothing a
 * producer could get wrong.
 */
export interface RunAgentInput {
  threadId: string;
  runId: string;
  protocolVersion?: string | null;
  parentRunId?: string | null;
  state?: unknown;
  messages: (DeveloperMessage | SystemMessage | AssistantMessage | UserMessage | ToolMessage | ActivityMessage | ReasoningMessage)[];
  tools?: Tool[] | null;
  context?: Context[] | null;
  forwardedProps?: unknown;
  resume?: ResumeEntry[] | null;
  [name: string]: unknown;
}

/**
 * A run with its steps, in the order they were begun, and what it stored with its last wait. `resumption` is null
 * until that wait is over.
 */
export interface RunDetail {
  id: string;
  thread_id: string;
  app_name: string;
  status: string;
  thinking_steps: unknown[];
  tool_calls: unknown[];
  error: string | null;
  created_at: string;
  started_at: string | null;
  completed_at: string | null;
  handler: string | null;
  input: unknown;
  result: unknown;
  worker_id: string | null;
  attempt: number;
  failures: number;
  max_attempts: number;
  available_at: string | null;
  lease_expires_at: string | null;
  queue: string | null;
  priority: number;
  /** The position in a trace at which the run was created (W3C). */
  traceparent: string | null;
  wait: WaitView | null;
  steps: StepView[];
  resumption_context: ResumptionContextView | null;
  resumption: ResumptionView | null;
}

/** Runs, newest first. */
export interface RunPage {
  runs: RunView[];
}

/** A signal for a waiting run. */
export interface RunSignal {
  correlation_key: string;
  payload?: unknown;
}

/** The tokens of a run. `cost` is null if no model of the run has a price. */
export interface RunTotals {
  calls: number;
  input_tokens: number;
  output_tokens: number;
  cost: number | null;
}

/** A run. */
export interface RunView {
  id: string;
  thread_id: string;
  app_name: string;
  status: string;
  thinking_steps: unknown[];
  tool_calls: unknown[];
  error: string | null;
  created_at: string;
  started_at: string | null;
  completed_at: string | null;
  handler: string | null;
  input: unknown;
  result: unknown;
  worker_id: string | null;
  attempt: number;
  failures: number;
  max_attempts: number;
  available_at: string | null;
  lease_expires_at: string | null;
  queue: string | null;
  priority: number;
  /** The position in a trace at which the run was created (W3C). */
  traceparent: string | null;
  wait: WaitView | null;
}

export interface SchedulePage {
  schedules: ScheduleView[];
  next_cursor: string | null;
}

export interface ScheduleView {
  id: string;
  app_name: string;
  user_id: string;
  thread_id: string | null;
  name: string;
  handler: string;
  input: unknown;
  max_attempts: number;
  queue: string | null;
  priority: number;
  cron: string | null;
  every_seconds: number | null;
  timezone: string;
  catch_up: string;
  catch_up_limit: number;
  paused_at: string | null;
  created_at: string;
  /** The next due times; none while the schedule is paused. */
  next_times: string[];
}

/** The number of the newest chunk that is stored. */
export interface SentChunksView {
  current_sequence: number;
}

/** A new title (empty removes it) and metadata to merge. */
export interface SessionChange {
  title?: string | null;
  metadata?: Record<string, unknown> | null;
}

/** Sessions, newest activity first. */
export interface SessionPage {
  sessions: SessionView[];
  next_cursor: string | null;
}

/** The session whose messages become episodes and facts. */
export interface SessionToConsolidate {
  app_name: string;
  user_id: string;
  agent_id?: string;
  session_id: string;
}

/** A session. */
export interface SessionView {
  thread_id: string;
  session_id: string;
  app_name: string;
  user_id: string;
  title: string | null;
  metadata: Record<string, unknown>;
  state: Record<string, unknown>;
  version: number;
  last_sequence: number;
  created_at: string;
  updated_at: string;
}

/** The result of a signal: `resumed`, `kept` for a later wait, or `duplicate` of an earlier one. */
export interface Signalled {
  outcome: string;
  run: RunView;
}

/** The version of the stored state. */
export interface SnapshotView {
  version: number;
}

/** An event that a text came from. */
export interface SourceName {
  session_id: string;
  event_id: string;
}

/** An event that a memory came from; `sequence_num` is null if it is not stored any more. */
export interface SourceView {
  session_id: string;
  event_id: string;
  thread_id: string | null;
  sequence_num: number | null;
}

/** The events that a memory and its duplicates came from. */
export interface Sources {
  sources: SourceView[];
}

/**
 * State and memory management capabilities. These tell the client how the
 * agent handles shared state and whether conversation context persists
 * across runs.
 */
export interface StateCapabilities {
  snapshots?: boolean | null;
  deltas?: boolean | null;
  memory?: boolean | null;
  persistentState?: boolean | null;
  [name: string]: unknown;
}

/** Keys to set, with their scope's prefix. Without an `author` the change is stored as the caller's. */
export interface StateChange {
  delta: Record<string, unknown>;
  expected_version?: number | null;
  author?: string | null;
}

/** A state with prefixed keys. */
export interface StateView {
  state: Record<string, unknown>;
  version: number;
  sequence_num: number;
}

/** A step of a run. */
export interface StepView {
  name: string;
  status: string;
  attempt: number;
  result: unknown;
  error: string | null;
  started_at: string;
  finished_at: string | null;
}

/** The run to stop; without an id, the active one. Other fields are ignored. */
export interface Stop {
  runId?: string | null;
}

/** How many memories are new or changed. */
export interface Stored {
  stored: number;
}

/** The id of a stored message, and the number of its event. */
export interface StoredMessageView {
  message_id: string;
  sequence_num: number;
}

/** Describes a subagent that can be invoked by a parent agent. */
export interface SubagentInfo {
  name: string;
  description?: string | null;
  [name: string]: unknown;
}

/** Instructions from the system. */
export interface SystemMessage {
  subagentRunId?: string | null;
  id: string;
  role?: "system";
  name?: string | null;
  encryptedValue?: string | null;
  metadata?: Record<string, unknown> | null;
  content: string;
  [name: string]: unknown;
}

/** A text part. */
export interface TextPart {
  type?: "text";
  id?: string | null;
  text: string;
  metadata?: unknown;
  [name: string]: unknown;
}

/** A thinking step. */
export interface Thought {
  thought: string;
}

/** The status of a thread's active run, else whether its newest run failed. */
export type ThreadStatus = "running" | "waiting" | "pending" | "failed" | "idle";

/** A ticket that opens one stream. */
export interface TicketView {
  ticket: string;
  expires_in: number;
}

/** Items, oldest first; `total` counts this page. */
export interface TimelineView {
  conversationId: string;
  timeline: Record<string, unknown>[];
  total: number;
  hasMore: boolean;
  firstSequence: number | null;
  lastSequence: number | null;
}

/** A tool the agent may call. */
export interface Tool {
  name: string;
  description: string;
  parameters?: unknown;
  metadata?: Record<string, unknown> | null;
  [name: string]: unknown;
}

/** The id of a tool call, for its result. */
export interface ToolCallView {
  id: string;
}

/** Approval or denial of a tool call. */
export interface ToolDecision {
  approved: boolean;
}

/**
 * What a tool returned, as a message in the conversation. Stands alone
 * rather than composing BaseMessage, because it carries no name.
 */
export interface ToolMessage {
  subagentRunId?: string | null;
  id: string;
  role?: "tool";
  content: string | (TextPart | ImagePart | AudioPart | VideoPart | DocumentPart)[];
  toolCallId: string;
  error?: string | null;
  encryptedValue?: string | null;
  metadata?: Record<string, unknown> | null;
  [name: string]: unknown;
}

/** The result of a tool. */
export interface ToolResult {
  output?: unknown;
  is_error?: boolean;
}

/**
 * Tool calling capabilities. Distinguishes between tools the agent itself
 * provides (listed in items) and tools the client passes at runtime via
 * RunAgentInput.tools. Enable this when your agent can call functions,
 * search the web, execute code, etc.
 */
export interface ToolsCapabilities {
  supported?: boolean | null;
  items?: Tool[] | null;
  parallelCalls?: boolean | null;
  clientProvided?: boolean | null;
  [name: string]: unknown;
}

/**
 * Declares which transport mechanisms the agent supports. Clients use this
 * to pick the best connection strategy. Only set flags to true for
 * transports your agent actually handles — omit or set false for
 * unsupported ones.
 */
export interface TransportCapabilities {
  streaming?: boolean | null;
  websocket?: boolean | null;
  httpBinary?: boolean | null;
  pushNotifications?: boolean | null;
  resumable?: boolean | null;
  [name: string]: unknown;
}

/** Bytes referenced by URL, fetched by whoever needs them. */
export interface UrlSource {
  type?: "url";
  value: string;
  mimeType?: string | null;
  [name: string]: unknown;
}

/** The tokens by model and in total. `cost` is in the unit of COGNIZES_PRICES and lacks the unpriced models. */
export interface UsageView {
  models: ModelUsageView[];
  calls: number;
  input_tokens: number;
  output_tokens: number;
  total_tokens: number;
  cost: number | null;
  unpriced_models: string[];
}

/** A message from the person using the application. */
export interface UserMessage {
  subagentRunId?: string | null;
  id: string;
  role?: "user";
  name?: string | null;
  encryptedValue?: string | null;
  metadata?: Record<string, unknown> | null;
  content: string | (TextPart | ImagePart | AudioPart | VideoPart | DocumentPart)[];
  [name: string]: unknown;
}

/** The versions of the engine and of PostgreSQL. */
export interface VersionView {
  engine: string;
  postgresql: string;
}

/** A video part. */
export interface VideoPart {
  type?: "video";
  id?: string | null;
  source: DataSource | UrlSource | FileSource;
  metadata?: unknown;
  [name: string]: unknown;
}

/** A tool call. */
export interface ViewsToolCall {
  tool_name: string;
  input?: unknown;
}

/** What a run waits for now. */
export interface WaitView {
  kind: string;
  correlation_key: string;
  reason: string | null;
  expires_at: string | null;
  timeout_node: string | null;
}

export interface WebhookList {
  webhooks: WebhookView[];
}

/** `waiting` and `dead` count the deliveries that are not answered. */
export interface WebhookView {
  id: string;
  app_name: string;
  url: string;
  events: string[];
  created_at: string;
  waiting: number;
  dead: number;
}

/** A working memory. */
export interface WorkingMemoryView {
  agent_id: string;
  session_id: string;
  messages: Record<string, unknown>[];
  variables: Record<string, unknown>;
  tool_calls: Record<string, unknown>[];
  scratchpad: unknown;
  last_checkpoint: Record<string, unknown> | null;
  updated_at: string | null;
}

/** All operations with JSON responses, by method and path. Streams and files have methods of their own. */
export interface Operations {
  /** Check the database, the listener and Redis */
  "GET /health": {
    path: {};
    query: {};
    body: undefined;
    response: HealthView;
  };
  /** Check that the process runs */
  "GET /live": {
    path: {};
    query: {};
    body: undefined;
    response: LiveView;
  };
  /** Read the versions */
  "GET /version": {
    path: {};
    query: {};
    body: undefined;
    response: VersionView;
  };
  /** Read the caller */
  "GET /api/access/me": {
    path: {};
    query: {};
    body: undefined;
    response: CallerView;
  };
  /** Create a ticket for one stream */
  "POST /api/access/tickets": {
    path: {};
    query: {};
    body: undefined;
    response: TicketView;
  };
  /** Read the tokens of a session */
  "GET /api/sessions/{thread_id}/usage": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: UsageView;
  };
  /** Count the tokens of a model call */
  "POST /api/sessions/{thread_id}/usage": {
    path: {
      thread_id: string;
    };
    query: {};
    body: NewUsage;
    response: Recorded;
  };
  /** Read the tokens of a run */
  "GET /api/runs/{run_id}/usage": {
    path: {
      run_id: string;
    };
    query: {
      /** The thread of the run, when several threads have a run of this id. */
      thread_id?: string | null;
    };
    body: undefined;
    response: UsageView;
  };
  /** Read the tokens of an app, or of one of its users */
  "GET /api/usage": {
    path: {};
    query: {
      app_name: string;
      user_id?: string | null;
      /** With a time zone, for example 2026-01-31T00:00:00Z. */
      since?: string | null;
      /** With a time zone, for example 2026-01-31T00:00:00Z. */
      until?: string | null;
    };
    body: undefined;
    response: UsageView;
  };
  /** Create a session */
  "POST /api/sessions": {
    path: {};
    query: {};
    body: NewSession;
    response: SessionView;
  };
  /** List sessions, newest activity first */
  "GET /api/sessions": {
    path: {};
    query: {
      app_name: string;
      user_id?: string | null;
      limit?: number;
      cursor?: string | null;
      include_state?: boolean;
    };
    body: undefined;
    response: SessionPage;
  };
  /** Read a session */
  "GET /api/sessions/{thread_id}": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: SessionView;
  };
  /** Change title and metadata */
  "PATCH /api/sessions/{thread_id}": {
    path: {
      thread_id: string;
    };
    query: {};
    body: SessionChange;
    response: SessionView;
  };
  /** Delete a session with everything in it */
  "DELETE /api/sessions/{thread_id}": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: undefined;
  };
  /** Fork a session */
  "POST /api/sessions/{thread_id}/fork": {
    path: {
      thread_id: string;
    };
    query: {};
    body: Fork | null | undefined;
    response: SessionView;
  };
  /** Append an event */
  "POST /api/sessions/{thread_id}/events": {
    path: {
      thread_id: string;
    };
    query: {};
    body: NewEvent;
    response: Appended;
  };
  /** Read events, oldest first */
  "GET /api/sessions/{thread_id}/events": {
    path: {
      thread_id: string;
    };
    query: {
      after?: number;
      limit?: number;
      recent?: number | null;
      before?: number | null;
    };
    body: undefined;
    response: EventPage;
  };
  /** Read the current or a past state */
  "GET /api/sessions/{thread_id}/state": {
    path: {
      thread_id: string;
    };
    query: {
      sequence?: number | null;
      version?: number | null;
    };
    body: undefined;
    response: StateView;
  };
  /** Change state */
  "PATCH /api/sessions/{thread_id}/state": {
    path: {
      thread_id: string;
    };
    query: {};
    body: StateChange;
    response: Appended;
  };
  /** Store a snapshot of the state */
  "POST /api/sessions/{thread_id}/snapshots": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: SnapshotView;
  };
  /** Read messages, oldest first */
  "GET /api/sessions/{thread_id}/messages": {
    path: {
      thread_id: string;
    };
    query: {
      after?: number;
      at_sequence?: number | null;
      limit?: number;
    };
    body: undefined;
    response: MessagePage;
  };
  /** Upload an attachment */
  "POST /api/sessions/{thread_id}/attachments": {
    path: {
      thread_id: string;
    };
    query: {
      /** The name that downloads have. */
      filename?: string;
    };
    body: Blob | ArrayBuffer | Uint8Array | string;
    response: AttachmentView;
  };
  /** List the attachments of a session */
  "GET /api/sessions/{thread_id}/attachments": {
    path: {
      thread_id: string;
    };
    query: {
      limit?: number;
      cursor?: string | null;
    };
    body: undefined;
    response: AttachmentPage;
  };
  /** Upload an attachment for a thread of an agent */
  "POST /agui/{agent}/threads/{thread_id}/attachments": {
    path: {
      agent: string;
      thread_id: string;
    };
    query: {
      /** The name that downloads have. */
      filename?: string;
    };
    body: Blob | ArrayBuffer | Uint8Array | string;
    response: AttachmentView;
  };
  /** Create a run, or enqueue it for workers */
  "POST /api/sessions/{thread_id}/runs": {
    path: {
      thread_id: string;
    };
    query: {};
    body: NewRun | null | undefined;
    response: RunView;
  };
  /** List the runs of a session, newest first */
  "GET /api/sessions/{thread_id}/runs": {
    path: {
      thread_id: string;
    };
    query: {
      limit?: number;
    };
    body: undefined;
    response: RunPage;
  };
  /** From pending to running */
  "POST /api/sessions/{thread_id}/runs/{run_id}/start": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {};
    body: NewLease | null | undefined;
    response: RunDetail;
  };
  /** Extend the lease of a running run */
  "POST /api/sessions/{thread_id}/runs/{run_id}/heartbeat": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {
      /** The attempt of the run when the caller started it; 409 when another attempt holds it. */
      attempt?: number | null;
    };
    body: NewLease | null | undefined;
    response: RunView;
  };
  /** From running to completed */
  "POST /api/sessions/{thread_id}/runs/{run_id}/finish": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {
      /** The attempt of the run when the caller started it; 409 when another attempt holds it. */
      attempt?: number | null;
    };
    body: undefined;
    response: RunView;
  };
  /** To failed, with the reason */
  "POST /api/sessions/{thread_id}/runs/{run_id}/fail": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {
      /** The attempt of the run when the caller started it; 409 when another attempt holds it. */
      attempt?: number | null;
    };
    body: Failure;
    response: RunView;
  };
  /** Add a thinking step */
  "POST /api/sessions/{thread_id}/runs/{run_id}/thinking-steps": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {
      /** The attempt of the run when the caller started it; 409 when another attempt holds it. */
      attempt?: number | null;
    };
    body: Thought;
    response: RunView;
  };
  /** Add a tool call */
  "POST /api/sessions/{thread_id}/runs/{run_id}/tool-calls": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {
      /** The attempt of the run when the caller started it; 409 when another attempt holds it. */
      attempt?: number | null;
    };
    body: ViewsToolCall;
    response: ToolCallView;
  };
  /** Add a tool's result */
  "POST /api/sessions/{thread_id}/runs/{run_id}/tool-calls/{call_id}/result": {
    path: {
      run_id: string;
      call_id: string;
      thread_id: string;
    };
    query: {
      /** The attempt of the run when the caller started it; 409 when another attempt holds it. */
      attempt?: number | null;
    };
    body: ToolResult;
    response: RunView;
  };
  /** Find runs of all sessions, newest first */
  "GET /api/runs": {
    path: {};
    query: {
      app_name?: string | null;
      user_id?: string | null;
      status?: ("pending" | "running" | "waiting" | "completed" | "failed" | "cancelled")[] | null;
      handler?: string | null;
      /** Add the tokens and the cost of each run. */
      with_usage?: boolean;
      limit?: number;
      cursor?: string | null;
    };
    body: undefined;
    response: FoundRuns;
  };
  /** Signal a run */
  "POST /api/runs/{run_id}/signal": {
    path: {
      run_id: string;
    };
    query: {
      /** The thread of the run, when several threads have a run of this id. */
      thread_id?: string | null;
    };
    body: NewSignal;
    response: Signalled;
  };
  /** From pending, running or waiting to cancelled */
  "POST /api/runs/{run_id}/cancel": {
    path: {
      run_id: string;
    };
    query: {
      /** The thread of the run, when several threads have a run of this id. */
      thread_id?: string | null;
    };
    body: undefined;
    response: RunView;
  };
  /** From failed to pending */
  "POST /api/runs/{run_id}/retry": {
    path: {
      run_id: string;
    };
    query: {
      /** The thread of the run, when several threads have a run of this id. */
      thread_id?: string | null;
    };
    body: undefined;
    response: RunView;
  };
  /** From running to waiting */
  "POST /api/runs/{run_id}/wait": {
    path: {
      run_id: string;
    };
    query: {
      /** The attempt of the run when the caller started it; 409 when another attempt holds it. */
      attempt?: number | null;
      /** The thread of the run, when several threads have a run of this id. */
      thread_id?: string | null;
    };
    body: NewWait;
    response: RunView;
  };
  /** Read a run with its steps */
  "GET /api/runs/{run_id}": {
    path: {
      run_id: string;
    };
    query: {
      /** The thread of the run, when several threads have a run of this id. */
      thread_id?: string | null;
    };
    body: undefined;
    response: RunDetail;
  };
  /** Create a schedule */
  "POST /api/schedules": {
    path: {};
    query: {};
    body: NewSchedule;
    response: ScheduleView;
  };
  /** List schedules */
  "GET /api/schedules": {
    path: {};
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
      user_id?: string | null;
      limit?: number;
      cursor?: string | null;
    };
    body: undefined;
    response: SchedulePage;
  };
  /** Read a schedule */
  "GET /api/schedules/{schedule_id}": {
    path: {
      schedule_id: string;
    };
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
      /** The number of next times. */
      count?: number;
    };
    body: undefined;
    response: ScheduleView;
  };
  /** Delete a schedule */
  "DELETE /api/schedules/{schedule_id}": {
    path: {
      schedule_id: string;
    };
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
    };
    body: undefined;
    response: undefined;
  };
  /** List firings */
  "GET /api/schedules/{schedule_id}/firings": {
    path: {
      schedule_id: string;
    };
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
      limit?: number;
    };
    body: undefined;
    response: FiringPage;
  };
  /** Pause a schedule */
  "POST /api/schedules/{schedule_id}/pause": {
    path: {
      schedule_id: string;
    };
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
    };
    body: undefined;
    response: ScheduleView;
  };
  /** Resume a schedule */
  "POST /api/schedules/{schedule_id}/resume": {
    path: {
      schedule_id: string;
    };
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
    };
    body: undefined;
    response: ScheduleView;
  };
  /** List the queues that have limits */
  "GET /api/queues": {
    path: {};
    query: {};
    body: undefined;
    response: QueueList;
  };
  /** Set the limits of a queue */
  "PUT /api/queues/{name}": {
    path: {
      name: string;
    };
    query: {};
    body: Limits;
    response: QueueView;
  };
  /** Remove the limits of a queue */
  "DELETE /api/queues/{name}": {
    path: {
      name: string;
    };
    query: {};
    body: undefined;
    response: undefined;
  };
  /** Create a webhook */
  "POST /api/webhooks": {
    path: {};
    query: {};
    body: NewWebhook;
    response: CreatedWebhook;
  };
  /** List webhooks */
  "GET /api/webhooks": {
    path: {};
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
    };
    body: undefined;
    response: WebhookList;
  };
  /** List calls that were given up, newest first */
  "GET /api/webhooks/dead-letters": {
    path: {};
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
      limit?: number;
      cursor?: string | null;
    };
    body: undefined;
    response: DeadLetterPage;
  };
  /** Redeliver a call */
  "POST /api/webhooks/dead-letters/{delivery_id}/redeliver": {
    path: {
      delivery_id: string;
    };
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
    };
    body: undefined;
    response: undefined;
  };
  /** Replace the secret */
  "POST /api/webhooks/{webhook_id}/rotate": {
    path: {
      webhook_id: string;
    };
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
    };
    body: undefined;
    response: NewSecret;
  };
  /** Delete a webhook */
  "DELETE /api/webhooks/{webhook_id}": {
    path: {
      webhook_id: string;
    };
    query: {
      /** The app that it belongs to. A key of some apps must name it. */
      app_name?: string | null;
    };
    body: undefined;
    response: undefined;
  };
  /** Find threads across apps and users, newest activity first */
  "GET /api/debug/threads": {
    path: {};
    query: {
      q?: string | null;
      app_name?: string | null;
      user_id?: string | null;
      status?: ThreadStatus | null;
      /** Thread ids, separated by commas: only these. */
      ids?: string | null;
      limit?: number;
      cursor?: string | null;
    };
    body: undefined;
    response: unknown;
  };
  /** List the apps of the caller */
  "GET /api/debug/apps": {
    path: {};
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Read the summary of a thread */
  "GET /api/debug/threads/{thread_id}": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Read which events are on the active branch */
  "GET /api/debug/threads/{thread_id}/active-path": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Find messages of a thread that contain a text */
  "GET /api/debug/threads/{thread_id}/messages": {
    path: {
      thread_id: string;
    };
    query: {
      q: string;
      before?: number | null;
      limit?: number;
    };
    body: undefined;
    response: unknown;
  };
  /** Read events with large values cut, oldest first */
  "GET /api/debug/threads/{thread_id}/events": {
    path: {
      thread_id: string;
    };
    query: {
      after?: number;
      limit?: number;
    };
    body: undefined;
    response: unknown;
  };
  /** Read one event with its AG-UI frames */
  "GET /api/debug/threads/{thread_id}/events/{sequence_num}": {
    path: {
      sequence_num: number;
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Read what one event changed in the state */
  "GET /api/debug/threads/{thread_id}/events/{sequence_num}/diff": {
    path: {
      sequence_num: number;
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Find runs of all threads without their documents, newest first */
  "GET /api/debug/runs": {
    path: {};
    query: {
      app_name?: string | null;
      user_id?: string | null;
      status?: ("pending" | "running" | "waiting" | "completed" | "failed" | "cancelled")[] | null;
      /** Of waiting runs: those that wait for one of these. */
      wait_kind?: ("webhook" | "human" | "timer" | "signal" | "message")[] | null;
      /** The beginning of the name of a handler or of a hosted agent. */
      handler?: string | null;
      /** Add the tokens and the cost of each run. */
      with_usage?: boolean;
      limit?: number;
      cursor?: string | null;
    };
    body: undefined;
    response: unknown;
  };
  /** Read the model calls, the waits and the steps of a run */
  "GET /api/debug/threads/{thread_id}/runs/{run_id}/activity": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Read the state by scope, with its history */
  "GET /api/debug/threads/{thread_id}/state": {
    path: {
      thread_id: string;
    };
    query: {
      limit?: number;
      after_version?: number;
    };
    body: undefined;
    response: unknown;
  };
  /** Read the current or a past state by scope, with large values cut */
  "GET /api/debug/threads/{thread_id}/scopes": {
    path: {
      thread_id: string;
    };
    query: {
      sequence?: number | null;
    };
    body: undefined;
    response: unknown;
  };
  /** Read one key of the state */
  "GET /api/debug/threads/{thread_id}/value": {
    path: {
      thread_id: string;
    };
    query: {
      key: string;
      sequence?: number | null;
    };
    body: undefined;
    response: unknown;
  };
  /** Read the writes of one key: author, time, run */
  "GET /api/debug/threads/{thread_id}/keys": {
    path: {
      thread_id: string;
    };
    query: {
      key: string;
      limit?: number;
      before_version?: number | null;
    };
    body: undefined;
    response: unknown;
  };
  /** Compare the state at two versions */
  "GET /api/debug/threads/{thread_id}/diff": {
    path: {
      thread_id: string;
    };
    query: {
      from_version: number;
      to_version: number;
    };
    body: undefined;
    response: unknown;
  };
  /** Export a thread as JSON or NDJSON */
  "GET /api/debug/threads/{thread_id}/export": {
    path: {
      thread_id: string;
    };
    query: {
      format?: "json" | "ndjson";
    };
    body: undefined;
    response: undefined;
  };
  /** Read the metrics of this process */
  "GET /api/debug/pulse": {
    path: {};
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Cancel a run, audited */
  "POST /api/debug/threads/{thread_id}/runs/{run_id}/cancel": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: RunView;
  };
  /** Signal a waiting run, audited */
  "POST /api/debug/threads/{thread_id}/runs/{run_id}/signal": {
    path: {
      run_id: string;
      thread_id: string;
    };
    query: {};
    body: RunSignal;
    response: unknown;
  };
  /** List open questions to people */
  "GET /api/debug/threads/{thread_id}/questions": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Approve or deny a tool, audited */
  "POST /api/debug/threads/{thread_id}/approvals/{approval_id}": {
    path: {
      approval_id: string;
      thread_id: string;
    };
    query: {};
    body: ToolDecision;
    response: unknown;
  };
  /** Answer the questions of an agent, audited */
  "POST /api/debug/threads/{thread_id}/answers": {
    path: {
      thread_id: string;
    };
    query: {};
    body: Answers;
    response: unknown;
  };
  /** List the agents */
  "GET /agui": {
    path: {};
    query: {};
    body: undefined;
    response: AgentList;
  };
  /** What an agent can do */
  "GET /agui/{agent}/capabilities": {
    path: {
      agent: string;
    };
    query: {};
    body: undefined;
    response: AgentCapabilities;
  };
  /** Cancel the active run of a thread */
  "POST /agui/{agent}/cancel": {
    path: {
      agent: string;
    };
    query: {};
    body: Connection;
    response: CancelledRun;
  };
  /** Page through the messages of a thread */
  "GET /agui/{agent}/threads/{thread_id}/messages": {
    path: {
      agent: string;
      thread_id: string;
    };
    query: {
      /** `before` of the page with newer messages. */
      before?: number | null;
    };
    body: undefined;
    response: MessagesView;
  };
  /** What this runtime offers */
  "GET /copilotkit/info": {
    path: {};
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Stop the active run of a thread */
  "POST /copilotkit/agent/{agent}/stop/{thread_id}": {
    path: {
      agent: string;
      thread_id: string;
    };
    query: {};
    body: Stop | null | undefined;
    response: unknown;
  };
  /** List threads, newest activity first */
  "GET /copilotkit/threads": {
    path: {};
    query: {
      agentId?: string | null;
      limit?: number;
      cursor?: string | null;
    };
    body: undefined;
    response: unknown;
  };
  /** The messages of a thread */
  "GET /copilotkit/threads/{thread_id}/messages": {
    path: {
      thread_id: string;
    };
    query: {
      /** `before` of the page with newer messages. */
      before?: number | null;
    };
    body: undefined;
    response: MessagesView;
  };
  /** The AG-UI events of a thread */
  "GET /copilotkit/threads/{thread_id}/events": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: unknown;
  };
  /** The state of a thread */
  "GET /copilotkit/threads/{thread_id}/state": {
    path: {
      thread_id: string;
    };
    query: {};
    body: undefined;
    response: unknown;
  };
  /** Send a message of the Model Context Protocol */
  "POST /mcp": {
    path: {};
    query: {
      /** The app; by default the only one of the key. */
      app_name?: string | null;
      /** The user, for a key that is bound to none. */
      user_id?: string | null;
    };
    body: Record<string, unknown>;
    response: Record<string, unknown> | undefined;
  };
  /** Export all data of a user as NDJSON */
  "GET /api/user-data": {
    path: {};
    query: {
      app_name: string;
      user_id: string;
    };
    body: undefined;
    response: unknown;
  };
  /** Erase all data of a user */
  "DELETE /api/user-data": {
    path: {};
    query: {
      app_name: string;
      user_id: string;
    };
    body: undefined;
    response: Erased;
  };
  /** Read the timeline */
  "GET /conversations/{context_id}/messages": {
    path: {
      context_id: string;
    };
    query: {
      limit?: number;
      before?: number | null;
      after?: number | null;
      branch?: string | null;
    };
    body: undefined;
    response: TimelineView;
  };
  /** Send a message to the agent of a conversation */
  "POST /conversations/{context_id}/chat": {
    path: {
      context_id: string;
    };
    query: {
      limit?: number;
    };
    body: NewChat;
    response: ChatView;
  };
  /** Read a context without its content */
  "GET /contexts/{context_id}/metadata": {
    path: {
      context_id: string;
    };
    query: {};
    body: undefined;
    response: ContextView;
  };
  /** Read messages by their ids, or those of a branch */
  "GET /contexts/{context_id}/messages": {
    path: {
      context_id: string;
    };
    query: {
      /** Comma separated; at most 200. */
      ids?: string | null;
      branch?: string | null;
      offset?: number;
      limit?: number;
      after?: number | null;
      before?: number | null;
    };
    body: undefined;
    response: BranchMessagesView | FoundMessagesView;
  };
  /** Add a whole message */
  "POST /contexts/{context_id}/messages": {
    path: {
      context_id: string;
    };
    query: {};
    body: NewMessage;
    response: StoredMessageView;
  };
  /** Pull the chunks of a message */
  "GET /contexts/{context_id}/messages/{message_id}/streaming-chunks": {
    path: {
      message_id: string;
      context_id: string;
    };
    query: {
      /** Exclusive. */
      from_sequence?: number;
      /** Inclusive. */
      to?: number | null;
      limit?: number;
      /** Seconds to wait for more. */
      wait?: number;
    };
    body: undefined;
    response: ChunksView;
  };
  /** Read the input of a model */
  "GET /contexts/{context_id}/llm-context": {
    path: {
      context_id: string;
    };
    query: {
      max_tokens?: number;
      branch?: string | null;
    };
    body: undefined;
    response: ModelInputView;
  };
  /** List branches */
  "GET /contexts/{context_id}/branches": {
    path: {
      context_id: string;
    };
    query: {};
    body: undefined;
    response: BranchList;
  };
  /** Create a branch */
  "POST /contexts/{context_id}/branches": {
    path: {
      context_id: string;
    };
    query: {};
    body: NewBranch;
    response: BranchView;
  };
  /** Switch to a branch */
  "PUT /contexts/{context_id}/branches/active": {
    path: {
      context_id: string;
    };
    query: {};
    body: ActiveBranch;
    response: BranchView;
  };
  /** Read the state at a branch's tip */
  "GET /contexts/{context_id}/branches/{name}/state": {
    path: {
      name: string;
      context_id: string;
    };
    query: {};
    body: undefined;
    response: BranchStateView;
  };
  /** Delete a branch */
  "DELETE /contexts/{context_id}/branches/{name}": {
    path: {
      name: string;
      context_id: string;
    };
    query: {};
    body: undefined;
    response: undefined;
  };
  /** Create a context */
  "POST /contexts": {
    path: {};
    query: {};
    body: NewContext;
    response: ContextView;
  };
  /** Start a message that is sent in chunks */
  "POST /contexts/{context_id}/messages/stream": {
    path: {
      context_id: string;
    };
    query: {};
    body: NewStream | null | undefined;
    response: OpenedStreamView;
  };
  /** Send chunks */
  "POST /contexts/{context_id}/messages/{message_id}/chunks": {
    path: {
      message_id: string;
      context_id: string;
    };
    query: {};
    body: NewChunks;
    response: SentChunksView;
  };
  /** Complete a message */
  "POST /contexts/{context_id}/messages/{message_id}/complete": {
    path: {
      message_id: string;
      context_id: string;
    };
    query: {};
    body: Completion | null | undefined;
    response: EndedStreamView;
  };
  /** Abort a message */
  "POST /contexts/{context_id}/messages/{message_id}/abort": {
    path: {
      message_id: string;
      context_id: string;
    };
    query: {};
    body: undefined;
    response: EndedStreamView;
  };
  /** List open approvals */
  "GET /contexts/{context_id}/tool-approvals": {
    path: {
      context_id: string;
    };
    query: {};
    body: undefined;
    response: ApprovalList;
  };
  /** Request an approval */
  "POST /contexts/{context_id}/tool-approvals": {
    path: {
      context_id: string;
    };
    query: {};
    body: NewApproval;
    response: ApprovalView;
  };
  /** Answer an approval */
  "POST /contexts/{context_id}/tool-approvals/{approval_id}": {
    path: {
      approval_id: string;
      context_id: string;
    };
    query: {};
    body: ApprovalAnswer;
    response: ApprovalView;
  };
  /** Cancel runs and streams */
  "POST /contexts/{context_id}/cancel": {
    path: {
      context_id: string;
    };
    query: {};
    body: undefined;
    response: CancelledView;
  };
  /** Remember texts for all users */
  "POST /memory/shared": {
    path: {};
    query: {};
    body: NewSharedNotes;
    response: Stored;
  };
  /** List shared memories, newest first */
  "GET /memory/shared": {
    path: {};
    query: {
      app_name: string;
      visibility: "agent" | "app";
      agent_id?: string | null;
      tag?: string[] | null;
      limit?: number;
      before?: string | null;
    };
    body: undefined;
    response: Memories;
  };
  /** Forget a shared memory for good */
  "DELETE /memory/shared/{memory_id}": {
    path: {
      memory_id: string;
    };
    query: {
      app_name: string;
      visibility: "agent" | "app";
    };
    body: undefined;
    response: undefined;
  };
  /** Recall memories */
  "POST /memory/recall": {
    path: {};
    query: {};
    body: Question;
    response: Hits;
  };
  /** Build the context of a prompt */
  "POST /memory/context": {
    path: {};
    query: {};
    body: ContextQuestion;
    response: PromptContext;
  };
  /** Search messages by words and meaning */
  "POST /memory/messages/search": {
    path: {};
    query: {};
    body: MessageQuestion;
    response: MessageHits;
  };
  /** Remember texts */
  "POST /memory": {
    path: {};
    query: {};
    body: NewNotes;
    response: Stored;
  };
  /** List memories, newest first */
  "GET /memory": {
    path: {};
    query: {
      app_name: string;
      user_id: string;
      agent_id?: string | null;
      kind?: ("long_term" | "episodic" | "turn" | "note")[] | null;
      namespace?: string | null;
      since?: string | null;
      until?: string | null;
      tag?: string[] | null;
      limit?: number;
      before?: string | null;
    };
    body: undefined;
    response: Memories;
  };
  /** Forget a memory for good */
  "DELETE /memory/{memory_id}": {
    path: {
      memory_id: string;
    };
    query: {
      app_name: string;
      user_id: string;
    };
    body: undefined;
    response: undefined;
  };
  /** Set a long-term fact */
  "PUT /memory/long-term": {
    path: {};
    query: {};
    body: NewFact;
    response: Fact;
  };
  /** List long-term facts, newest change first */
  "GET /memory/long-term": {
    path: {};
    query: {
      namespace?: string | null;
      limit?: number;
      offset?: number;
      app_name: string;
      user_id: string;
      agent_id?: string;
    };
    body: undefined;
    response: Facts;
  };
  /** Read a long-term fact */
  "GET /memory/long-term/entry": {
    path: {};
    query: {
      key: string;
      namespace?: string;
      as_of?: string | null;
      app_name: string;
      user_id: string;
      agent_id?: string;
    };
    body: undefined;
    response: Fact;
  };
  /** Delete a long-term fact */
  "DELETE /memory/long-term/entry": {
    path: {};
    query: {
      key: string;
      namespace?: string;
      app_name: string;
      user_id: string;
      agent_id?: string;
    };
    body: undefined;
    response: undefined;
  };
  /** Append an episode */
  "POST /memory/episodic": {
    path: {};
    query: {};
    body: NewEpisode;
    response: Episode;
  };
  /** List episodes, newest first */
  "GET /memory/episodic": {
    path: {};
    query: {
      session_id?: string | null;
      limit?: number;
      offset?: number;
      app_name: string;
      user_id: string;
      agent_id?: string;
    };
    body: undefined;
    response: Episodes;
  };
  /** Delete an episode */
  "DELETE /memory/episodic/entry": {
    path: {};
    query: {
      id: string;
      app_name: string;
      user_id: string;
      agent_id?: string;
    };
    body: undefined;
    response: undefined;
  };
  /** Save a working memory */
  "PUT /memory/working": {
    path: {};
    query: {};
    body: NewWorkingMemory;
    response: WorkingMemoryView;
  };
  /** Load a working memory */
  "GET /memory/working": {
    path: {};
    query: {
      session_id: string;
      app_name: string;
      user_id: string;
      agent_id?: string;
    };
    body: undefined;
    response: WorkingMemoryView;
  };
  /** Merge equal and near memories */
  "POST /memory/duplicates": {
    path: {};
    query: {};
    body: DuplicatesToMerge;
    response: Merged;
  };
  /** Consolidate */
  "POST /memory/consolidations": {
    path: {};
    query: {};
    body: SessionToConsolidate;
    response: EnqueuedRun;
  };
  /** List the values of a long-term fact */
  "GET /memory/long-term/history": {
    path: {};
    query: {
      key: string;
      namespace?: string;
      limit?: number;
      app_name: string;
      user_id: string;
      agent_id?: string;
    };
    body: undefined;
    response: FactHistory;
  };
  /** List the memories that came from an event */
  "GET /memory/of-event": {
    path: {};
    query: {
      app_name: string;
      user_id: string;
      session_id: string;
      event_id: string;
    };
    body: undefined;
    response: MemoriesOfEvent;
  };
  /** List the events that a memory came from */
  "GET /memory/{memory_id}/sources": {
    path: {
      memory_id: string;
    };
    query: {
      app_name: string;
      user_id: string;
    };
    body: undefined;
    response: Sources;
  };
}
