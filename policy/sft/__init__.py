"""Supervised fine-tuning on audited traces."""
