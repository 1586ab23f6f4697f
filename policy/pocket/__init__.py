"""pocket."""
