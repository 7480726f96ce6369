"""Handler packs that come with Fusee. They register the way yours do: see docs/handler-packs.md."""

__all__: list[str] = []
