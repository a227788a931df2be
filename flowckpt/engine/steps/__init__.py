"""How one step is restored or executed, and the steps that consist of steps."""
