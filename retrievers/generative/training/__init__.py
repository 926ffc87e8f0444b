"""Training of generative retrievers."""
