"""`rewrite-train encoder`: one encoder for all catalogues, trained on many and judged on others."""
