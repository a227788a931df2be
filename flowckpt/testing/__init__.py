"""For tests of pipelines and of stores: a clock turned by hand, and the conformance tests of the store port.

`flowckpt.testing.contract` needs pytest and pytest-asyncio; nothing else here needs more than flowckpt itself.
"""

from flowckpt.testing.clock import FakeClock

__all__ = ["FakeClock"]
