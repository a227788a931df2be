"""What sealing says of bytes that do not open; each store turns it into an error of its own with the place."""


class SealBrokenError(Exception):
    """A record does not open: it was changed, put elsewhere, or made by somebody without the key.

    Args:
        detail: what does not hold.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail
