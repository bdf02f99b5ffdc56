"""What `pyproject.toml` cannot say: the part in C. Where it cannot be compiled, picopyn is installed without it."""

import sysconfig

from setuptools import Extension, setup

KEYS = Extension(
    "picopyn.dialects.picodata._quick_keys",
    ["picopyn/dialects/picodata/_quick_keys.c"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")],
    py_limited_api=True,
    optional=True,
)

# The limited API does not know a Python without the global lock.
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    setup()
else:
    setup(ext_modules=[KEYS], options={"bdist_wheel": {"py_limited_api": "cp311"}})
