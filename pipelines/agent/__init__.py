"""An agent over the sample's tools: task generation, simulated tools, the loop, the score."""
