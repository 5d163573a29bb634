"""Harmless texts in places that can decide which program runs: values of variables, scripts of sed,
commands whose output is a number or a name. Knowledge as data; a text that is not listed is not harmless.

Sources: the programs' manuals, and what people and agents write every day.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import takewhile

from runner.permissions.shell.words import Printed, Word, by_name, names

# --- Variables. A program's environment decides what it loads and runs.

# With any value: no program takes one for a file, a program or options.
_ANY_VALUE = names("""
    CI DEBUG NODE_ENV LANG LANGUAGE TZ TERM COLUMNS LINES NO_COLOR FORCE_COLOR CLICOLOR CLICOLOR_FORCE
    RUST_BACKTRACE RUST_LOG PYTHONUNBUFFERED PYTHONDONTWRITEBYTECODE PYTHONHASHSEED LOG_LEVEL VERBOSE
    COVERAGE HEADLESS CGO_ENABLED GOOS GOARCH BABEL_ENV MIX_ENV PGPASSWORD PGUSER PGDATABASE
    GIT_AUTHOR_NAME GIT_AUTHOR_EMAIL GIT_AUTHOR_DATE GIT_COMMITTER_NAME GIT_COMMITTER_EMAIL
    GIT_COMMITTER_DATE""")
_SWITCH = r"[0-9]*|true|false|yes|no|on|off"
# With 0, 1, a number, or a word of that kind.
_SWITCHES = names("""
    GIT_TERMINAL_PROMPT GIT_OPTIONAL_LOCKS GIT_MERGE_AUTOEDIT GIT_ADVICE GIT_LFS_SKIP_SMUDGE GIT_TRACE
    GIT_CURL_VERBOSE PYTHONUTF8 PYTHONFAULTHANDLER PYTHONASYNCIODEBUG PYTHONNOUSERSITE PYTHONSAFEPATH
    PYTHONDEVMODE PYTHONOPTIMIZE PYTHONTRACEMALLOC PYTEST_DISABLE_PLUGIN_AUTOLOAD
    NODE_NO_WARNINGS TS_NODE_TRANSPILE_ONLY HUSKY PUPPETEER_SKIP_DOWNLOAD PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD
    CYPRESS_INSTALL_BINARY NEXT_TELEMETRY_DISABLED DO_NOT_TRACK COREPACK_ENABLE_DOWNLOAD_PROMPT
    npm_config_yes npm_config_fund npm_config_audit npm_config_progress PIP_DISABLE_PIP_VERSION_CHECK
    PIP_NO_CACHE_DIR PIP_NO_INPUT PIP_QUIET POETRY_NO_INTERACTION UV_OFFLINE UV_FROZEN UV_NO_PROGRESS
    UV_NO_SYNC CARGO_INCREMENTAL CARGO_NET_OFFLINE CARGO_BUILD_JOBS RUST_MIN_STACK RUST_TEST_THREADS
    GOMAXPROCS GOGC DOCKER_BUILDKIT COMPOSE_DOCKER_CLI_BUILD CMAKE_BUILD_PARALLEL_LEVEL
    CTEST_PARALLEL_LEVEL CTEST_OUTPUT_ON_FAILURE OMP_NUM_THREADS OPENBLAS_NUM_THREADS MKL_NUM_THREADS
    TOKENIZERS_PARALLELISM HF_HUB_OFFLINE TRANSFORMERS_OFFLINE TF_CPP_MIN_LOG_LEVEL TF_IN_AUTOMATION
    DOTNET_NOLOGO DOTNET_CLI_TELEMETRY_OPTOUT STORYBOOK_DISABLE_TELEMETRY ASTRO_TELEMETRY_DISABLED
    GATSBY_TELEMETRY_DISABLED GENERATE_SOURCEMAP TESTING QUIET RUN_SLOW TF_INPUT
    FLASK_DEBUG DJANGO_DEBUG PORT SOURCE_DATE_EPOCH HOMEBREW_NO_AUTO_UPDATE MALLOC_ARENA_MAX
    DISABLE_SPRING PWDEBUG PROPTEST_CASES QUICKCHECK_TESTS SQLX_OFFLINE PARALLEL_WORKERS
    MALLOC_CHECK_ MALLOC_PERTURB_ GTEST_REPEAT GTEST_SHUFFLE TESTCONTAINERS_RYUK_DISABLED
    PYTEST_XDIST_AUTO_NUM_WORKERS HYPOTHESIS_MAX_EXAMPLES JAX_ENABLE_X64 TORCH_NUM_THREADS NUMBA_DISABLE_JIT
    CUDA_LAUNCH_BLOCKING PYTORCH_ENABLE_MPS_FALLBACK TF_ENABLE_ONEDNN_OPTS ESLINT_USE_FLAT_CONFIG
    SKIP_SLOW INTEGRATION E2E SLOW USE_SQLITE
    PYTHONNODEBUGRANGES PYTHONPROFILEIMPORTTIME NO_UPDATE_NOTIFIER ADBLOCK DISABLE_OPENCOLLECTIVE""")
_COMPILE = (
    r"-(?:O[0-3sgz]?|g[0-3]?|W|W[a-z][a-z0-9=-]*|std=[a-z0-9+]+|f(?:PIC|pic|PIE|no-[a-z-]+|sanitize=[a-z,]+)"
    r"|m(?:arch|tune)=[a-z0-9-]+|D[A-Za-z_][A-Za-z0-9_]*(?:=[A-Za-z0-9_]+)?|pthread|pipe|v)"
)
_RUSTC = (
    r"-[DWAF] ?[a-z_:]+|--cfg ?[a-z_]+|-C ?(?:opt-level|debuginfo|target-cpu|codegen-units|panic"
    r"|overflow-checks|debug-assertions|instrument-coverage)(?:=[a-z0-9-]+)?"
)
_NODE = (
    r"--(?:max[-_](?:old[-_]space|semi[-_]space|http-header)[-_]size=[0-9]+|no-warnings|no-deprecation"
    r"|trace-(?:warnings|deprecation|uncaught)|throw-deprecation|enable-source-maps|expose[-_]gc"
    r"|experimental-vm-modules|openssl-legacy-provider|unhandled-rejections=[a-z-]+"
    r"|dns-result-order=[a-z0-9]+|no-experimental-[a-z-]+)"
)


def _list_of(item: str, between: str = " ") -> str:
    return rf"(?:{item})?(?:{between}(?:{item}))*"


_VALUES = {
    "NODE_OPTIONS": _list_of(_NODE),
    "GIT_PAGER PAGER MANPAGER SYSTEMD_PAGER GH_PAGER AWS_PAGER BAT_PAGER DELTA_PAGER": "cat|",
    "GIT_EDITOR EDITOR VISUAL GIT_SEQUENCE_EDITOR KUBE_EDITOR": "true|:|cat",
    "GIT_ASKPASS SSH_ASKPASS": "true|false|",
    "APP_ENV FLASK_ENV RACK_ENV RAILS_ENV": "test|testing|dev|development|local|ci",
    "BROWSER": "none|true|",
    "LESS": r"-?[FRXSMiNq]+",
    "PYTHONIOENCODING PYTHONENCODING": r"[a-z0-9:-]+",
    "PYTHONWARNINGS": r"ignore|default|error|always|module|once",
    "PYTHONBREAKPOINT PYTHONSTARTUP": "0|",
    "PYTEST_ADDOPTS": _list_of(
        r"-[qxvs]+|-rA|--tb=[a-z]+|--color=[a-z]+|--no-header|--maxfail=[0-9]+"
    ),
    "DJANGO_SETTINGS_MODULE": r"[A-Za-z_]\w*(?:\.\w+)*",
    "MAKEFLAGS": _list_of(
        r"-?(?:j ?[0-9]*|[kswB]+)|--no-print-directory|--output-sync(?:=[a-z]+)?"
    ),
    "CFLAGS CXXFLAGS CPPFLAGS": _list_of(_COMPILE),
    "RUSTFLAGS RUSTDOCFLAGS": _list_of(_RUSTC),
    "CARGO_TERM_COLOR CARGO_TERM_PROGRESS_WHEN": "[a-z]+",
    "GOFLAGS": _list_of(r"-(?:mod=[a-z]+|count=[0-9]+|v|race|short|buildvcs=[a-z]+|p=[0-9]+)"),
    "GO111MODULE GOTOOLCHAIN GOTRACEBACK GOPROXY": r"on|off|auto|local|direct|all|single|none",
    "npm_config_loglevel NPM_CONFIG_LOGLEVEL": "[a-z]+",
    "DEBIAN_FRONTEND BUILDKIT_PROGRESS UV_LINK_MODE JAX_PLATFORMS TF_LOG": "[A-Za-z]+",
    "MPLBACKEND": "(?i:agg|svg|pdf|ps|cairo)",
    "QT_QPA_PLATFORM SDL_VIDEODRIVER SDL_AUDIODRIVER": "offscreen|minimal|dummy",
    "CUDA_VISIBLE_DEVICES": r"-?[0-9,]*",
    "ASAN_OPTIONS LSAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS": _list_of(
        r"(?:detect_leaks|halt_on_error|abort_on_error|print_stacktrace|fast_unwind_on_malloc)=[01]",
        ":",
    ),
    "DRY_RUN": "1|true|yes",
    "INSTA_UPDATE TRYBUILD UPDATE_EXPECT": "no|new|always|auto|unseen|overwrite|wip|1",
    "MIRIFLAGS": _list_of(r"-Zmiri-[a-z-]+(?:=[a-z0-9]+)?"),
    "GORACE": _list_of(r"(?:halt_on_error|history_size|strip_path_prefix|exitcode)=[0-9]+"),
    "GOEXPERIMENT GOTESTSUM_FORMAT GOARM GOAMD64": "[a-z0-9,-]+",
    "GOPRIVATE GONOSUMDB GONOPROXY": r"[a-z0-9.-]+\.[a-z]+(?:/[\w./*-]*)?",
    "SPRING_PROFILES_ACTIVE MICRONAUT_ENVIRONMENTS QUARKUS_PROFILE DJANGO_ENV PHOENIX_ENV MIX_TARGET "
    "AWS_PROFILE ENVIRONMENT APP_ENVIRONMENT NODE_CONFIG_ENV DEPLOY_ENV": (
        "test|testing|dev|development|local|ci|sandbox"
    ),
    "DB_CONNECTION DB_ADAPTER DB_DRIVER": "sqlite3?|pgsql|postgres(?:ql)?|mysql",
    "DB_DATABASE": ":memory:|[a-z0-9_]*test[a-z0-9_]*",
    "DB_HOST REDIS_HOST PGHOST POSTGRES_HOST MYSQL_HOST": r"localhost|127\.0\.0\.1|db|redis|postgres|mysql",
    "DB_PORT REDIS_PORT PGPORT POSTGRES_PORT": "[0-9]+",
    "SECRET_KEY DJANGO_SECRET_KEY JWT_SECRET": r"(?:x|test|dummy|fake|dev|secret|changeme|ci)[a-z_-]*",
    "SPEC_OPTS": _list_of(
        r"--format(?:=| )[a-z]+|-f ?[a-z]+|--(?:no-)?color|--fail-fast|--seed[ =][0-9]+"
    ),
    "GTEST_COLOR MESON_TESTTHREADS CATCH_CONFIG_COLOUR": "[a-z0-9]+",
    "HF_HOME TORCH_HOME TRANSFORMERS_CACHE HF_DATASETS_CACHE": r"(?:\./)?\.?cache(?:/[\w-]+)*",
    "FLASK_APP": r"[A-Za-z_]\w*(?:\.\w+)*(?::\w+)?",
    "GODEBUG": _list_of(
        r"(?:gctrace|inittrace|schedtrace|scheddetail|madvdontneed|http2debug|netdns)=[a-z0-9]+",
        ",",
    ),
    "GOWORK": "off",
    "RUBYOPT": r"-w|-W[0-2]?|-W:no-[a-z]+",
    "JAVA_HOME": r"/usr/lib/jvm/[A-Za-z0-9_.+-]+",
    "MAVEN_OPTS GRADLE_OPTS JAVA_OPTS JAVA_TOOL_OPTIONS SBT_OPTS": _list_of(
        r"-X(?:m[sxn]|ss)[0-9]+[kmgKMG]|-XX:[+-]?[A-Za-z0-9]+(?:=[0-9]+[kmgKMG]?)?"
        r"|-Dfile\.encoding=[A-Za-z0-9-]+|-Duser\.timezone=[A-Za-z/_]+|-Dorg\.gradle\.[a-z.]+=[a-z0-9]+"
    ),
    "CARGO_TARGET_DIR": r"(?:\./)?target(?:[/-][a-z0-9_-]+)*",
    "XDEBUG_MODE": "[a-z,]+",
    "ASPNETCORE_ENVIRONMENT DOTNET_ENVIRONMENT": "[A-Za-z]+",
    "AWS_REGION AWS_DEFAULT_REGION COMPOSE_PROJECT_NAME SKIP WANDB_MODE": r"[a-z0-9_,-]+",
    "SETUPTOOLS_SCM_PRETEND_VERSION": r"[0-9a-z.+]+",
    "HOST": r"localhost|127\.0\.0\.1|0\.0\.0\.0",
    "DISPLAY": r":[0-9]+(?:\.[0-9])?",
    "LOGLEVEL PYTHONLOGLEVEL": "[A-Za-z]+",
}
_HARMLESS_VALUES = {
    **dict.fromkeys(_SWITCHES, re.compile(_SWITCH)),
    **{name: re.compile(value) for name, value in by_name(_VALUES).items()},
}
# Where Python looks for modules first: the folder that it is in, and the usual ones below, for programs
# that run the code of a project anyway.
_PYTHON_PATH = re.compile(
    r"(?:\$PYTHONPATH:|\$\{PYTHONPATH(?::?-)?\}:)?"
    + _list_of(
        r"(?:(?:\.|\$PWD|\$\{PWD\}|\$\(pwd\))(?=[/:]|\Z)/?)?(?:(?:src|lib|app|tests?|python)/?)?",
        ":",
    )
    + r"(?::\$PYTHONPATH|:\$\{PYTHONPATH(?::?-)?\}|\$\{PYTHONPATH:\+:\$PYTHONPATH\})?"
)
_TEMPORARY = names("TMP TEMP TMPDIR TEMPDIR TMP_DIR TEMP_DIR TMPFILE TMP_FILE")
# Where the programs of a project find its own libraries.
_LIBRARIES = re.compile(
    r"(?:(?:\./|\$PWD/|\$\(pwd\)/)?(?:build|target|lib|out)(?:/\w[\w-]*)*|\.)"
    r"(?::\$LD_LIBRARY_PATH|:\$\{LD_LIBRARY_PATH(?::?-)?\})?"
)
# A database of this machine: for programs that run tests, or named as one for tests.
_DATABASES = names("DATABASE_URL TEST_DATABASE_URL REDIS_URL")
_DATABASE = re.compile(
    r"(?:postgres(?:ql)?|mysql|redis)(?:\+[a-z0-9]+)?://(?:[a-z0-9_]+(?::[a-z0-9_]+)?@)?"
    r"(?:localhost|127\.0\.0\.1)(?::[0-9]+)?(?:/(?P<name>[a-z0-9_]*))?"
    r"|sqlite(?:\+[a-z0-9]+)?://(?:/?(?P<memory>:memory:))?"
)
_FOR_TESTS = re.compile(r"(?:[a-z0-9_]*_)?tests?(?:db)?(?:_[a-z0-9_]*)?|:memory:")
# Variables that name a program: with its usual names, as in an argument of make.
_COMPILERS = names("CC CXX CPP AR LD FC F77 HOSTCC PYTHON")
# Names of a project's own, by what they begin with.
_FAMILIES = {
    r"(?:VITE|NEXT_PUBLIC|REACT_APP)_\w+": r"(?!-)[\w.:/-]*",
    "CARGO_PROFILE_[A-Z]+_(?:DEBUG|LTO|OPT_LEVEL|STRIP|PANIC|CODEGEN_UNITS)": "[a-z0-9]+",
    "(?:API|BASE|APP|SITE|SERVER|BACKEND|FRONTEND|WEB|SERVICE|GRAPHQL|TEST|E2E|PLAYWRIGHT|CYPRESS)"
    "_(?:[A-Z]+_)?(?:URL|HOST|ORIGIN|ENDPOINT)": (
        r"(?:https?://)?(?:localhost|127\.0\.0\.1)(?::[0-9]+)?(?:/[\w/-]*)?"
    ),
    "(?:RUN|TEST|VERBOSE|SHOW|LOG|TRACE)_[A-Z0-9_]+|UPDATE_(?:SNAPSHOTS?|GOLDENS?)": _SWITCH,
}
_FAMILY_VALUES = [(re.compile(name), re.compile(value)) for name, value in _FAMILIES.items()]
_TEST_RUNNERS = re.compile(r"py\.?test|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest")
_OF_PROJECT = re.compile(
    r"py\.?test|tox|nox|coverage|uv|poetry|pdm|hatch|pipenv|python(?:3(?:\.[0-9]+)?)?"
)


# Programs that neither run Python nor are Python.
_NO_PYTHON = names("""
    echo printf ls cat head tail wc grep rg sort uniq cut tr sed tee cd mkdir rm cp mv touch test [ true
    false pwd date sleep timeout set exit""")


def is_python_path(value: str, programs: Collection[str]) -> bool:
    """True if a PYTHONPATH lists only usual folders of a project, and each program runs the project's
    Python or none."""
    return _PYTHON_PATH.fullmatch(value) is not None and all(
        _OF_PROJECT.fullmatch(program) or program in _NO_PYTHON for program in programs
    )


def is_harmless(name: str, value: Word | None, program: str = "") -> bool:
    """True if a variable that is set to ``value`` (None: nobody knows) changes nothing that ``program``
    runs, or any program if that is ""."""
    if name in _ANY_VALUE or re.fullmatch(r"LC_[A-Z]+", name):
        return True
    if value is None:
        return False
    if name in _TEMPORARY:
        return value.value in ("$(mktemp)", "$(mktemp -d)")
    if name == "LD_LIBRARY_PATH":
        return program.startswith("./") and _LIBRARIES.fullmatch(value.value) is not None
    if name == "PYTHONPATH":
        return bool(_OF_PROJECT.fullmatch(program) and _PYTHON_PATH.fullmatch(value.value))
    if name in _DATABASES:
        database = _DATABASE.fullmatch(value.value) if value.exact else None
        called = database and (database["name"] or database["memory"] or "")
        tests = _TEST_RUNNERS.fullmatch(program) or _FOR_TESTS.fullmatch(called or "")
        return bool(database and tests)
    if name in _COMPILERS and value.exact:
        return is_make_assignment(f"{name}={value.value}")
    harmless = _HARMLESS_VALUES.get(name)
    if harmless is None:
        harmless = next(
            (value for pattern, value in _FAMILY_VALUES if pattern.fullmatch(name)), None
        )
    return harmless is not None and value.exact and harmless.fullmatch(value.value) is not None


# --- Assignments in the arguments of make: ``make CC=clang ARGS="-k x"``.

_TARGET = r"(?:[a-z0-9_]+-){0,3}"
_VERSION = r"(?:-?[0-9]+(?:\.[0-9]+)*)?"
# Variables that name a program, and its usual names.
_PROGRAMS = {
    r"(?:HOST|BUILD)?_?CC": rf"{_TARGET}gcc{_VERSION}|{_TARGET}clang{_VERSION}|cc|tcc|musl-gcc",
    r"(?:HOST|BUILD)?_?CXX": rf"{_TARGET}g\+\+{_VERSION}|{_TARGET}clang\+\+{_VERSION}|c\+\+",
    "CPP": rf"cpp{_VERSION}|gcc -E|clang -E",
    "LD": rf"ld|ld\.lld|lld{_VERSION}|gold|mold",
    "AR": r"ar|gcc-ar|llvm-ar",
    "FC|F77": rf"gfortran{_VERSION}",
    r"PYTHON[23]?|PY": rf"python{_VERSION}|pypy3?",
    "PYTEST": "pytest|py.test|python3? -m pytest",
    "PIP": "pip3?",
    "NPM|PKG_MANAGER": "npm|pnpm|yarn|bun",
    "GO": "go",
    "CARGO": "cargo",
    "DOCKER|CONTAINER_(?:TOOL|ENGINE|RUNTIME)": "docker|podman|nerdctl",
    "PAGER": "cat",
    "PREFIX|DESTDIR": r"(?!.*\.\.)[A-Za-z0-9_./-]*",  # where ``make install`` puts things
    "BIN": r"(?:build|bin|dist|out|target)(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)+",
    "SHELL": r"(?:/bin/|/usr/bin/)?(?:ba|da)?sh",
}
_PROGRAM_VALUES = [(re.compile(name), re.compile(value)) for name, value in _PROGRAMS.items()]
_NAMES_PROGRAM = re.compile(
    r"SHELL|(?:.*_)?(?:[A-Z]{0,5}CC|CXX|CPP|LD|AR|AS|RM|NM|PY|GO|SH|EXE|TAR|SED|AWK|GIT)|.*(?:SHELL|CMD|COMMAND"
    r"|WRAPPER|LAUNCHER|PYTHON[23]?|PYTEST|PIP[23]?|NODE|NPM|NPX|YARN|CARGO|RUSTC|DOCKER|BIN|EXEC|TOOL|RUNNER"
    r"|RUN|PROG|PROGRAM|EDITOR|PAGER|COMPILER|INTERPRETER|LINTER|FORMATTER|ENGINE|DRIVER|HOOK|SUDO|CURL|WGET"
    r"|GREP|STRIP|INSTALL|JAVA|JAVAC|RUBY|PERL|PHP|LUA|BASH|EVAL|PREFIX_CMD)|MAKE.*|GNUMAKEFLAGS|MFLAGS|\.SHELLFLAGS"
    r"|VPATH|\.RECIPEPREFIX|\.DEFAULT_GOAL|LD_.*|PATH|IFS|HOME|.*_?(?:PLUGINS?|LIBS|LDLIBS|PRELOAD)",
    re.IGNORECASE,
)
_FLAGS = re.compile(r"[A-Z_]*(?:CFLAGS|CXXFLAGS|CPPFLAGS|LDFLAGS|LDLIBS|LIBS)")
_LINK = (
    r"-l[A-Za-z0-9_+.-]+|-L ?[A-Za-z/][A-Za-z0-9_./-]*|-s|-static|-shared"
    r"|-Wl,-rpath[,=][A-Za-z0-9_./-]+"
)
_ARGS = re.compile(
    r"[A-Z_]*(?:ARGS?|ARGUMENTS|OPTS?|OPTIONS|PARAMS|TESTS?|T|K|FILTER|PATTERN|MSG|MESSAGE|NAME|FILES?|TARGETS?"
    r"|SERVICES?|PKGS?|PACKAGES?|MODULES?)",
    re.IGNORECASE,
)
_PATHS = re.compile(
    r"[A-Z_]*(?:ARGS?|TESTS?|T|FILES?|DIRS?|PATHS?|SRCS?|OUT|OUTPUT|DEST|DESTDIR|PREFIX|PKGS?|PACKAGES?|MODULES?"
    r"|TARGETS?|SUITES?|SPECS?|DOCS?|APPS?|IMAGE|TAG|BRANCH|ROOT|PLATFORMS?)",
    re.IGNORECASE,
)
_FOLDERS = re.compile(r"(?:[A-Z]+_)?(?:PKGS?|PACKAGES?|TESTS?|DIRS?|PATHS?|FILES?|ARGS?|SRCS?)")
_PLAIN_PIECE = re.compile(r"[A-Za-z0-9_.,:@%+=-]*")
_PATH_PIECE = re.compile(
    r"(?!-)(?!.*(?:^|/)\.\.?(?:/|$))(?!/|[A-Za-z0-9_]*=/)[A-Za-z0-9_.,:@%+=/-]*"
)
# Options that make some program run or write what they say.
_RISKY_PIECE = re.compile(
    r"-[A-Za-z]*[BCIWcefIoprW]|-[A-Za-z]*[BCIWcefIoprW][^A-Za-z].*|--?[a-z-]*(?:exec|eval|command|cmd|plugin|conf|import|require|load|hook|wrapper"
    r"|script|shell|tmp|temp|root|output|file|log|prefix|path|dir|spec|linker|runner|editor|pager|program|xml|html"
    r"|report|save|write|delete|remove|force|preprocess)[a-z-]*(?:=.*)?",
    re.IGNORECASE,
)


def is_make_assignment(text: str) -> bool:
    """True if an argument of make (``NAME=value``) is an assignment that makes it run nothing else."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        return False
    for listed, usual in _PROGRAM_VALUES:
        if listed.fullmatch(name):
            return usual.fullmatch(value) is not None
    if _FLAGS.fullmatch(name):
        return re.fullmatch(_list_of(f"{_COMPILE}|{_LINK}"), value) is not None
    if _NAMES_PROGRAM.fullmatch(name):
        return False
    here = "./" if _FOLDERS.fullmatch(name) else ""
    pieces = value.split(" ")
    if len(pieces) > 1 and not _ARGS.fullmatch(name):
        return False
    return all(
        (
            _PLAIN_PIECE.fullmatch(piece)
            or (_PATHS.fullmatch(name) and _PATH_PIECE.fullmatch(piece.removeprefix(here)))
        )
        and not _RISKY_PIECE.fullmatch(piece)
        for piece in pieces
    )


# --- Definitions of cmake: ``-DCMAKE_C_COMPILER=clang``.

_CMAKE_PROGRAMS = re.compile(
    r".*(?:COMPILER|LAUNCHER|LINKER|_TIDY|CPPCHECK|CPPLINT|WHAT_YOU_USE|EMULATOR|RULE_.*|TOOLCHAIN.*|PROJECT_.*INCLUDE.*"
    r"|MODULE_PATH|RULES_OVERRIDE.*|PKG_CONFIG|MPIEXEC|PROGRAM|RANLIB|_AR|_NM|_LD|_STRIP|OBJCOPY|OBJDUMP|COMMAND)",
    re.IGNORECASE,
)
_CMAKE_USUAL = re.compile(
    rf"(?:/usr(?:/local)?/bin/)?(?:{_TARGET}(?:gcc|g\+\+|clang|clang\+\+){_VERSION}|cc|c\+\+|nvcc|ccache|sccache|ninja|make|lld|gold"
    r"|mold|clang-tidy|cppcheck|cpplint|include-what-you-use|iwyu)?|TRUE|FALSE|ON|OFF"
)
_CMAKE_FLAGS = re.compile(r".*FLAGS(?:_[A-Z]+)?", re.IGNORECASE)
_EXECUTABLE = re.compile(r"(?:/usr(?:/local)?/bin/)?[a-z0-9.+-]+")
# Of cmake's own variables these name no program, and hold no template of a command.
_CMAKE_OWN = re.compile(
    r"CMAKE_(?:BUILD_TYPE|BUILD_PARALLEL_LEVEL|(?:C|CXX|CUDA|HIP|OBJC|OBJCXX|Fortran|Swift)_(?:STANDARD|STANDARD_REQUIRED"
    r"|EXTENSIONS|VISIBILITY_PRESET|SCAN_FOR_MODULES)|VISIBILITY_INLINES_HIDDEN|EXPORT_COMPILE_COMMANDS|VERBOSE_MAKEFILE"
    r"|COLOR_(?:MAKEFILE|DIAGNOSTICS)|POSITION_INDEPENDENT_CODE|INTERPROCEDURAL_OPTIMIZATION|UNITY_BUILD"
    r"|OSX_(?:ARCHITECTURES|DEPLOYMENT_TARGET|SYSROOT)|(?:CUDA|HIP)_ARCHITECTURES|COMPILE_WARNING_AS_ERROR"
    r"|FIND_DEBUG_MODE|FIND_PACKAGE_PREFER_CONFIG|DISABLE_FIND_PACKAGE_\w+|REQUIRE_FIND_PACKAGE_\w+"
    r"|POLICY_DEFAULT_CMP[0-9]+|POLICY_VERSION_MINIMUM|SKIP_\w+|(?:DEBUG|RELEASE)_POSTFIX|MSVC_RUNTIME_LIBRARY"
    r"|INSTALL_(?:PREFIX|LIBDIR|BINDIR|INCLUDEDIR|MESSAGE)|PREFIX_PATH|(?:RUNTIME|LIBRARY|ARCHIVE)_OUTPUT_DIRECTORY)"
)
_CMAKE_FOLDERS = re.compile(r".*(?:DIR|DIRECTORY|ROOT|PATH|PREFIX)", re.IGNORECASE)
_INSTALLED = re.compile(r"(?!.*/\.\.?(?:/|$))/(?:usr|opt)(?:/[A-Za-z0-9_.+-]+)*/?")


def is_cmake_definition(text: str) -> bool:
    """True if a cmake definition (``NAME:TYPE=value``) makes it run only the usual programs."""
    name, _, value = text.partition("=")
    name = name.partition(":")[0]
    if _CMAKE_PROGRAMS.fullmatch(name):
        return _CMAKE_USUAL.fullmatch(value) is not None
    if _CMAKE_FLAGS.fullmatch(name):
        return re.fullmatch(_list_of(f"{_COMPILE}|{_LINK}"), value) is not None
    if name.startswith("CMAKE_") and not _CMAKE_OWN.fullmatch(name):
        return False
    if name.upper().endswith("EXECUTABLE"):
        return _EXECUTABLE.fullmatch(value) is not None
    if _CMAKE_FOLDERS.fullmatch(name) and _PATH_PIECE.fullmatch(value.removeprefix("./")):
        return True
    if _CMAKE_FOLDERS.fullmatch(name) and name != "CMAKE_INSTALL_PREFIX":
        return _INSTALLED.fullmatch(value) is not None
    return _PLAIN_PIECE.fullmatch(value) is not None


# --- Scripts of sed that print and change text, and neither run commands nor name files.


_BRACKETS = r"\[\^?\]?(?:\[:[a-z]+:\]|[^\[\]\\\n]|\[(?![:.=])|\\[^\n\]])*\]"


def _between(sign: str, brackets: bool = True) -> str:
    """Return the pattern of a text that ends at ``sign``. In brackets the sign does not count; a sed to
    which it does refuses what is before it."""
    return (
        rf"(?:[^{sign}\\\n\[]|\\[^\n]|{_BRACKETS})*" if brackets else rf"(?:[^{sign}\\\n]|\\[^\n])*"
    )


_SIGNS = "/|#,:@!%_;~+"
_ADDRESS = rf"(?:[0-9]+(?:~[0-9]+)?|\$|/{_between('/')}/I?)"
_ADDRESSES = rf"{_ADDRESS}?(?:,[ \t]*(?:{_ADDRESS}|[+~][0-9]+))?[ \t]*!?[ \t]*"
_SUBSTITUTE = "|".join(
    rf"s{re.escape(s)}{_between(re.escape(s))}{re.escape(s)}{_between(re.escape(s), False)}{re.escape(s)}"
    rf"[gpiImM0-9]*|y{re.escape(s)}{_between(re.escape(s), False)}{re.escape(s)}"
    rf"{_between(re.escape(s), False)}{re.escape(s)}"
    for s in _SIGNS
)
_SED_END = r"[ \t]*(?:;|\n|(?=\})|\Z|(?=#))"
_SED_COMMAND = re.compile(
    rf"[ \t\n;]*(?:{_ADDRESSES}(?:"
    rf"(?P<open>\{{)|(?P<close>\}}){_SED_END}"
    rf"|(?:[pdnNhHgGxDPFz=]|[qQl][ \t]*[0-9]*|{_SUBSTITUTE}){_SED_END}"
    rf"|[bt][ \t]*[A-Za-z0-9_]*{_SED_END}|[aic](?:\\\n|\\(?!\n)|[ \t]+)(?:[^\n\\]|\\[^\n])*(?:\n|\Z))"
    r"|:[ \t]*[A-Za-z0-9_]+[ \t]*(?:;|\n|\Z)|#[^\n]*(?:\n|\Z)|\Z)"
)


def is_plain_sed(script: str) -> bool:
    """True if a script of sed runs no command and names no file."""
    at, depth = 0, 0
    while at < len(script):
        command = _SED_COMMAND.match(script, at)
        if command is None or command.end() == at:
            return False
        depth += bool(command["open"]) - bool(command["close"])
        at = command.end()
    return depth == 0


# --- Commands with a known form of output.

_REF = r"[A-Za-z0-9@][A-Za-z0-9_./@^~-]*(?:@?\{[a-z0-9]+\})?"
_QUOTED = r"'[^']*'|\"[^\"$`\\]*\"|[A-Za-z0-9_.,:^/-]+"
_FILE = r"[A-Za-z0-9_][A-Za-z0-9_./-]*"
_DATE = r"%-?[YmdHMSsFTjygGVU](?:[-_.:]?%-?[YmdHMSsFTjygGVU])*"
_PRINTS: dict[Printed, tuple[str, ...]] = {
    # A number and nothing else, whatever is in the files.
    "number": (
        r"wc -[lwcm]", rf"grep -[civwxEFs]*c[civwxEFs]*(?: -e)? (?:{_QUOTED})(?: {_FILE})?", "nproc",
        rf"git rev-list --count(?: (?:{_REF}|--all|--no-merges))+", r"date \+%s(?:%N)?", "id -[ug]",
        rf"stat -c ?['\"]?%[sY]['\"]? {_FILE}", r"sed -n ['\"]?\$=['\"]?", r"getconf _NPROCESSORS_ONLN",
        r"seq(?: [0-9]+){1,3}", r"awk 'END ?\{ ?print NR ?\}'", r"date \+(?:%[YmdHMSj])+",
    ),
    # One word or several of letters and digits, none with a dash in front.
    "word": (
        rf"git merge-base(?: (?:--all|--octopus|--fork-point|{_REF}))+",
        # A name that is none is printed as it is.
        r"git rev-parse(?: (?:--short(?:=[0-9]+)?|-q|--quiet|--abbrev-ref))*"
        r" (?:HEAD|@|main|master|[a-z]+/[a-z]+)(?:[~^][0-9]*)*",
        rf"git rev-parse(?: (?:--short(?:=[0-9]+)?|-q|--quiet))* --verify(?: --short)? {_REF}",
        "git branch --show-current",
        rf"git describe(?: --(?:tags|always|long|dirty|abbrev=[0-9]+))*(?: {_REF})?",
        r"git rev-list(?: (?:-n ?[0-9]+|-[0-9]+|--max-parents=0|--max-count=[0-9]+|--reverse"
        rf"|--(?:no-)?merges|--first-parent|--all|{_REF}))+",
        r"go list(?: -m)?(?: (?:\.|\./[A-Za-z0-9_/.-]*|all))*",
        rf"git log -1 --(?:format|pretty)=(?:format:)?['\"]?%[Hh]['\"]?(?: {_REF})?",
        rf"date \+['\"]?{_DATE}['\"]?", "uname -[smrn]", "id -un", "whoami", "arch", "go env GO(?:OS|ARCH)",
    ),
    # An absolute path.
    "path": ("pwd(?: -P)?", r"git rev-parse --show-toplevel", "mktemp(?: -d)?"),
}  # fmt: skip
_KNOWN_OUTPUTS = [(kind, re.compile("|".join(forms))) for kind, forms in _PRINTS.items()]


# The numbers of the lines that fit.
_LINES = re.compile(
    rf"grep -[EFiwPx]*n[EFiwPx]*(?: -m ?1)?(?: -e)? (?:{_QUOTED}) {_FILE}(?: \| (?:head|tail) -n? ?[0-9]+)?"
    r" \| cut -d ?['\"]?:['\"]? -f ?1(?: \| (?:head|tail) -n? ?[0-9]+)?"
)


def printed(command: str) -> Printed:
    """Return what a simple command or a known pipe prints, "" if that is not known."""
    if _LINES.fullmatch(command):
        return "number"
    return next((kind for kind, known in _KNOWN_OUTPUTS if known.fullmatch(command)), "")


# --- Commands in a pipe: those at its end that print a part of what they read, and those that print
# whole lines of it and nothing else.

END_OF_PIPE = re.compile(
    r"(?:head|tail)(?: -[0-9]+| -[nc] ?[-+]?[0-9]+| --(?:lines|bytes)=[-+]?[0-9]+)*"
)
PASSES_ON = re.compile(
    rf"(?:head|tail)(?: -[0-9]+| -n ?[0-9]+)*|grep(?: -[viEFwx]+)*(?: -e)? (?:{_QUOTED})"
    r"|sort(?: -[ruVn]+)?|uniq|tac"
)


# --- Programs that can run anything, used so that they run nothing.

_HOST = r"[A-Za-z0-9][A-Za-z0-9.:-]*"
_SCAN = r"(?:-[zvnu46]+ |-[zvnu46]*w ?[0-9]+ )*-[vnu46]*z[vnu46]*(?:w ?[0-9]+)? (?:-[vnu46]+ |-w ?[0-9]+ )*"
_MADE = (
    r"(?=\./|[\w.-]+/)(?:\./)?(?!\.)(?:\w[\w.-]*/)*\w[\w.-]*(?: .*)?"  # a program of the project
)
_SHOWS = "run|r|bt|backtrace|bt full|where|quit|q|thread apply all bt|info [a-z]+|list|start"
_USES = {
    "valgrind": re.compile(
        r"(?:(?:-[qvsh]|--(?:tool=[a-z-]+|leak-check=[a-z]+|show-leak-kinds=[a-z,]+|show-reachable=[a-z]+"
        r"|error-exitcode=[0-9]+|track-(?:origins|fds)=[a-z]+|trace-children=[a-z]+|num-callers=[0-9]+|quiet"
        r"|errors-for-leak-kinds=[a-z,]+|child-silent-after-fork=yes|gen-suppressions=[a-z]+|verbose))"
        rf" )*{_MADE}"
    ),
    "strace ltrace": re.compile(rf"(?:-(?:[fcCtTryvqSkin]+|[es] ?[a-z0-9=,!_-]+|ff) )*{_MADE}"),
    "perf": re.compile(
        rf"(?:stat|record)(?: -(?:[gdvra]|[eF] ?[a-z0-9:,-]+|-call-graph[= ][a-z]+|-))* {_MADE}"
    ),
    "gdb": re.compile(
        rf"-?-batch(?: -(?:q|-quiet|-?ex ['\"]?(?:{_SHOWS})['\"]?))*(?: --?args)? {_MADE}"
    ),
    "nc ncat netcat": re.compile(rf"{_SCAN}{_HOST}(?: [0-9]+(?:-[0-9]+)?)+(?: -[vzw0-9]+)*"),
    "crontab": re.compile("-l"),
    "ip": re.compile(
        r"(?:-(?:[046dhso]|br|brief|json|j|p|c|color|stats|details) )*"
        r"(?:a|addr|address|r|route|l|link|n|neigh|rule)"
        r"(?: (?:s|show|list|get)(?: [a-z0-9.:/]+)*)?"
    ),
}


_USE_OF = by_name(_USES)


def is_harmless_use(program: str, arguments: Sequence[Word]) -> bool:
    """True if a program that can run anything runs nothing with these arguments."""
    use = _USE_OF.get(program)
    given = " ".join(word.value for word in arguments)
    literal = all(word.exact for word in arguments)
    return literal and (given == "--version" or (use is not None and bool(use.fullmatch(given))))


# --- Options that may stand before a subcommand as well as behind it.

_BEFORE = {
    "kubectl oc": r"(?:-n|--namespace)[ =]?[a-z0-9-]+",
    "docker-compose": r"(?:-f|--file)[ =](?:\./)?(?:docker-)?compose(?:\.[\w-]+)*\.ya?ml"
    r"|(?:-p|--project-name|--profile)[ =][\w-]+|--(?:ansi|progress)[ =][a-z]+",
    "cargo": r"\+(?:nightly|stable|beta|[0-9.]+)|-[qv]+|--(?:quiet|verbose|locked|offline|frozen)",
    "mvn mvnw": r"-(?:[qBoeXU]|ntp|nsu|am|fae|ff|fn|T ?[0-9.]+C?|pl [\w:,-]+|DskipTests(?:=true)?)"
    r"|--(?:quiet|batch-mode|offline|no-transfer-progress|also-make|update-snapshots|errors)",
    "gradle gradlew": r"-[qisw]|--(?:quiet|info|stacktrace|warn|no-daemon|offline|parallel|continue"
    r"|console=[a-z]+|(?:no-)?build-cache|rerun-tasks)",
    "npm": r"-s|--silent|(?:-w|--workspace)[ =](?!\S*\.\.)[\w@./-]+|--workspaces|-ws",
    "pnpm": r"-[rsw]|--silent|--recursive|(?:-F|--filter)[ =](?!\S*\.\.)[\w@./*^-]+",
    "yarn": r"-s|--silent",
    "python python3": r"-[uBbOsqv]+|-W ?(?:ignore|default|error|always)|-X ?(?:dev|faulthandler|utf8)",
}
_BEFORE_OF = {
    name: re.compile(rf"(?:(?:{options}) )*") for name, options in by_name(_BEFORE).items()
}


def options_before(program: str, arguments: Sequence[Word]) -> int:
    """Return how many of the arguments of a program come before its subcommand and change nothing."""
    known = _BEFORE_OF.get(program)
    if known is None:
        return 0
    values = [word.value for word in takewhile(lambda word: word.exact, arguments)]
    found = known.match(" ".join(values))
    taken = found.group().count(" ") if found else 0
    return taken if not any(" " in value for value in values[:taken]) else 0
