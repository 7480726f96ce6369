"""Lists of environment names, with `*` for any text: which of them would let a caller choose code."""

from fnmatch import fnmatchcase

__all__ = ["CHOOSE_CODE", "check_names", "names_in"]

CHOOSE_CODE = (
    # Every program: the loader, the C library, and where programs and settings are found.
    "PATH", "HOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "DYLD_INSERT_LIBRARIES", "GCONV_PATH",
    "GLIBC_TUNABLES", "OPENSSL_CONF", "EDITOR", "VISUAL", "PAGER", "BROWSER",
    # Shells.
    "ENV", "BASH_ENV", "BASH_FUNC_x", "SHELLOPTS", "BASHOPTS", "PS4", "IFS", "PROMPT_COMMAND", "ZDOTDIR",
    # Interpreters.
    "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "PYTHONINSPECT", "PYTHONBREAKPOINT",
    "PERL5OPT", "PERL5LIB", "PERL5DB", "PERLLIB", "RUBYOPT", "RUBYLIB", "GEM_PATH", "NODE_OPTIONS",
    "NODE_PATH", "NODE_EXTRA_CA_CERTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH",
    "PHPRC", "LUA_INIT", "LUA_PATH", "R_PROFILE",
    # Programs that start others.
    "GIT_SSH", "GIT_SSH_COMMAND", "GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_EDITOR", "GIT_ASKPASS",
    "GIT_EXEC_PATH", "GIT_CONFIG_COUNT", "GIT_CONFIG_GLOBAL", "GIT_PROXY_COMMAND", "GIT_TEMPLATE_DIR",
    "SSH_ASKPASS", "LESSOPEN", "MANPAGER", "TAR_OPTIONS", "RSYNC_RSH", "MAKEFLAGS", "CURL_HOME",
    "PSQLRC", "PSQL_PAGER",
)  # fmt: skip
"""Names that make some program run code of the caller's choice. Not a list of what is refused to payloads
(only what `settable` names passes), but a check of that setting: a pattern that covers one is a slip."""


def names_in(text: str) -> tuple[str, ...]:
    """Return the names and patterns in a text such as `PGHOST PGPORT` or `PGHOST, PGPORT`."""
    return tuple(text.replace(",", " ").split())


def check_names(text: str) -> str:
    """Refuse a pattern that covers more than its author can have meant; `*` alone says so openly."""
    for pattern in names_in(text):
        covered = [name for name in CHOOSE_CODE if fnmatchcase(name, pattern)]
        if "*" in pattern and pattern != "*" and covered:
            raise ValueError(
                f"must have no pattern that covers {covered[0]}, with which whoever creates a run chooses the"
                " code that a program runs; write the names one by one"
            )
    return text
