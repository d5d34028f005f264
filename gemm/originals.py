"""NumPy's own functions, bound when `gemm` is imported.

`gemm.use_in_numpy()` rebinds these names in NumPy. Whatever is handed back to NumPy (longdouble,
object, subclasses, duck arrays) must reach the function that was there before, or a call would
come round to where it started. A function that the installed NumPy does not have yet is None.
"""

import numpy as np

matmul = np.matmul
vecdot = getattr(np, "vecdot", None)  # NumPy 2.0
matvec = getattr(np, "matvec", None)  # NumPy 2.2
vecmat = getattr(np, "vecmat", None)  # NumPy 2.2

dot = np.dot
vdot = np.vdot
inner = np.inner
outer = np.outer
kron = np.kron
tensordot = np.tensordot
einsum = np.einsum
einsum_path = np.einsum_path
transpose = np.transpose

multi_dot = np.linalg.multi_dot
matrix_power = np.linalg.matrix_power
linalg_outer = getattr(np.linalg, "outer", None)  # NumPy 2.0
