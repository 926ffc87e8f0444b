"""Dense retrieval that learns: an encoder tuned on queries and the tools they need."""
