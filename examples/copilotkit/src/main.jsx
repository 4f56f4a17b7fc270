import "@copilotkit/react-core/v2/styles.css";
import "./main.css";

import {
  CopilotChat,
  CopilotKitProvider,
  useAgent,
  useDefaultRenderTool,
  useInterrupt,
} from "@copilotkit/react-core/v2";
import { StrictMode, useState } from "react";
import { createRoot } from "react-dom/client";

const AGENT = "demo";

/** The thread's id is in the address, so a reload or a second tab opens the same conversation. */
function openThread() {
  const address = new URL(window.location.href);
  if (!address.searchParams.has("thread")) {
    address.searchParams.set("thread", crypto.randomUUID());
    window.history.replaceState(null, "", address);
  }
  return address.searchParams.get("thread");
}

function Page({ threadId }) {
  const [problem, setProblem] = useState("");
  return (
    <CopilotKitProvider
      runtimeUrl="/copilotkit"
      enableInspector={false}
      onError={({ error }) => setProblem(error.message)}
    >
      <main>
        <Chat threadId={threadId} />
        <aside>
          <a href="/">New conversation</a>
          <State />
          <p role="alert">{problem}</p>
        </aside>
      </main>
    </CopilotKitProvider>
  );
}

function Chat({ threadId }) {
  useDefaultRenderTool();
  useInterrupt({ agentId: AGENT, render: Confirmations });
  return <CopilotChat agentId={AGENT} threadId={threadId} />;
}

/** Tools that need a person's consent have interrupted the run. It is resumed when all of them have an answer. */
function Confirmations({ interrupts, resolve }) {
  return interrupts.map(({ id, metadata }) => (
    <div className="confirmation" key={id}>
      <p>
        May <code>{metadata.toolName}</code> be called with <code>{JSON.stringify(metadata.arguments)}</code>?
      </p>
      <button onClick={() => resolve({ confirmed: true }, id)}>Yes</button>
      <button onClick={() => resolve({ confirmed: false }, id)}>No</button>
    </div>
  ));
}

/** The state of the session, of the user (user:) and of the app (app:). */
function State() {
  const { agent } = useAgent({ agentId: AGENT });
  return <pre>{JSON.stringify(agent.state, null, 2)}</pre>;
}

createRoot(document.getElementById("root")).render(
  <StrictMode>
    <Page threadId={openThread()} />
  </StrictMode>,
);
