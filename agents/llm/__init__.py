"""Language models behind one string: configuration, client, ledger of spending, structured answers.

Importing this package, or ``agents.llm.config``, loads neither litellm nor langchain.
"""
