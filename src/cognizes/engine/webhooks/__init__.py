"""Webhooks: signed HTTP calls when a run waits for a person, fails or completes."""

from cognizes.engine.webhooks.webhooks import DeadLetter, Webhook, Webhooks

__all__ = ["DeadLetter", "Webhook", "Webhooks"]
