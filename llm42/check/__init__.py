"""Does a server repeat itself? Any OpenAI-compatible server, asked alone and among neighbours.

:mod:`~llm42.check.compare` judges completions and knows no network, :mod:`~llm42.check.runner` asks for
them, :mod:`~llm42.check.report` shows the verdict.
"""
