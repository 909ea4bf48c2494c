"""LLM-42: the same answer twice, bit for bit, from a dynamically batched LLM server.

Start reading at :mod:`llm42.protocol`: it is the whole idea, and imports nothing heavy.
"""

__version__ = "0.1.0"
