-- Queue the calls of webhooks in the transaction that changes a run: it waits for a person, failed or completed.
CREATE OR REPLACE FUNCTION {schema}.queue_webhooks() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.webhook_deliveries (webhook_id, app_name, thread_id, run_id, event, payload)
    SELECT w.id, NEW.app_name, NEW.thread_id, NEW.id, NEW.status,
           json_build_object(
               'type', 'run.' || NEW.status,
               'timestamp', clock_timestamp(),
               'data', json_build_object(
                   'app_name', NEW.app_name, 'user_id', t.user_id, 'session_id', t.session_id, 'thread_id', NEW.thread_id,
                   'run_id', NEW.id, 'status', NEW.status, 'handler', NEW.handler, 'attempt', NEW.attempt,
                   'error', CASE WHEN NEW.status = 'failed' THEN NEW.error END,
                   'wait', CASE WHEN NEW.status = 'waiting' THEN json_build_object(
                       'kind', NEW.wait_kind, 'correlation_key', NEW.wait_key, 'reason', NEW.wait_reason,
                       'expires_at', NEW.wait_expires_at) END))
      FROM {schema}.webhooks w
      JOIN {schema}.threads t ON t.id = NEW.thread_id
     WHERE w.app_name = NEW.app_name AND NEW.status = ANY (w.events);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER queue_webhooks
    AFTER UPDATE OF status ON {schema}.runs
    FOR EACH ROW WHEN (OLD.status <> NEW.status
                       AND (NEW.status IN ('failed', 'completed') OR NEW.status = 'waiting' AND NEW.wait_kind = 'human'))
    EXECUTE FUNCTION {schema}.queue_webhooks();
