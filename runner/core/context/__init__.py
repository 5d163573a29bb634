"""What of a conversation the model is sent: the window, estimates of tokens, and compaction."""
