"""blockswarm: volunteers train one language model together and serve it, with no central coordinator."""

__version__ = "0.1.0"
