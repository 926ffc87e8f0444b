"""An agent over the sample's tools: tasks, the tools themselves, a loop that runs a model against them, a score."""
