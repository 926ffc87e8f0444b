"""The results table: figures of many runs, on many machines, in one page; and whether they still hold."""
