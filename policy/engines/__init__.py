"""What samples from a policy: transformers, vLLM, Ray actors, models behind an API."""
