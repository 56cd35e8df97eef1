"""State that survives in a checkpoint."""

from __future__ import annotations

from typing import Any, ClassVar


class Stateful:
    """Mixin for objects whose state is a fixed set of attributes."""

    base_state_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that every subclass saves, whatever its `state_names`."""
    state_names: ClassVar[tuple[str, ...]] = ()
    """Attributes that make up the object's state between two arrivals."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state by reference, as `torch.optim` does: save or copy it before the next arrival."""
        values = {name: getattr(self, name) for name in (*self.base_state_names, *self.state_names)}
        return {name: v.state_dict() if isinstance(v, Stateful) else v for name, v in values.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state of `state_dict`.

        Args:
            state: The saved state; the object takes ownership of it.
        """
        for name in (*self.base_state_names, *self.state_names):
            value = getattr(self, name, None)
            if isinstance(value, Stateful):
                value.load_state_dict(state[name])
            else:
                setattr(self, name, state[name])
