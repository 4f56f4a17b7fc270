"""Token deltas: messages that are being written, chunk by chunk, for readers in any process."""
