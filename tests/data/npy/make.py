"""Writes the .npy files of this folder: python3 make.py (needs NumPy)."""
import numpy as np

values = np.array([[0.5, -1.0, 65504.0], [2.0 ** -14, -0.0, 3.0]])
for name in ("f2", "f4", "f8"):
    np.save(f"{name}.npy", values.astype("<" + name))
np.save("u2.npy", (values.astype("<f4").view("<u4") >> 16).astype("<u2"))
np.save("v2.npy", (values.astype("<f4").view("<u4") >> 16).astype("<u2").view("V2"))
for name in ("i4", "i8"):
    np.save(f"{name}.npy", np.array([2, -100], dtype="<" + name))
for version in ((2, 0), (3, 0)):
    with open(f"version{version[0]}.npy", "wb") as file:
        np.lib.format.write_array(file, values.astype("<f4"), version=version)
np.save("big_endian.npy", values.astype(">f4"))
np.save("fortran.npy", np.asfortranarray(values.astype("<f4")))
np.save("column.npy", np.asfortranarray(values[:, :1].astype("<f4")))
np.save("object.npy", np.array([None, 1], dtype=object), allow_pickle=True)
np.save("structured.npy", np.zeros(2, dtype=[("a", "<f4"), ("b", "<i4")]))
