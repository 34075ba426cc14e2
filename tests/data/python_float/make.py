"""Writes what Python prints and reads as a float: python3 make.py.

repr.txt: bits of a double in hexadecimal, then repr(x).
parse.txt: a token in quotes as repr() puts it, then the bits of float(token), or "error".
"""
import random
import struct


def bits(x):
    return "nan" if x != x else struct.pack(">d", x).hex()


def double(n):
    return struct.unpack(">d", n.to_bytes(8, "big"))[0]


def fp32(n):
    return struct.unpack(">f", n.to_bytes(4, "big"))[0]


random.seed(1)
values = [0.0, -0.0, 1.0, -1.0, 0.1, 0.3, 1 / 3, 2 / 3, 100.0, 1e15, 9999999999999998.0, 1e16, 1.0000000000000002e16,
          123456789012345680.0, 1e22, 1e23, 9007199254740991.0, 9007199254740992.0, 9007199254740994.0, 1e-4,
          0.00010000000000000002, 9.999999999999999e-05, 1e-5, 1.5e-7, 5e-324, 1e-323, 2.2250738585072014e-308,
          2.225073858507201e-308, 1.7976931348623157e308, float("inf"), float("-inf"), float("nan"), 1e100, 1e-100,
          74923716378624.0, 2.3820613814095566e17, 2.0 ** -1074, 2.0 ** 970, 2.0 ** 52 + 0.5, 4.35, 0.000001,
          2.98023223876953125e-8, 5e-5, 299792458.0, 6.02214076e23, 6.62607015e-34, 8.41, 9.5367431640625e-07]
for e in range(-30, 31):
    values += [10.0 ** e, -(10.0 ** e), 1.5 * 10.0 ** e]
for e in range(-1074, 1024, 53):
    values += [2.0 ** e, (1 + 2.0 ** -52) * 2.0 ** e]
values += [double(random.getrandbits(64)) for _ in range(300)]
values += [fp32(random.getrandbits(32)) for _ in range(200)]
values += [fp32(random.randrange(0x3C000000, 0x42000000)) for _ in range(200)]
with open("repr.txt", "w") as file:
    for value in values:
        file.write(f"{bits(value)} {value!r}\n")

tokens = ["1", "1.", ".5", "-.5", "+1.5", "1e5", "1E5", "1e+05", "1e-05", "1_000", "1_0.0_1e1_0", "inf", "-inf", "+Inf",
          "Infinity", "-iNFINITY", "nan", "-nan", "+NaN", " 1.5", "1.5 ", "\t1.5\n", "1e400", "-1e400", "1e-400",
          "0x10", "1__0", "_1", "1_", "1_.0", "1._0", "1e_5", "1e5_", "", " ", ".", "-", "+", "e5", ".e5", "1e", "1e+",
          "--1", "1.2.3", "1,5", "infinit", "nan(1)", "1f", "1d5", "1 2", "1\x002", "\x001", "None", "True", "0b1",
          "179769313486231580793728971405303415079934132710037826936173778980444968292764750946649017977587207096330286"
          "416692887910946555547851940402630657488671505820681908902000708383676273854845817711531764475730270069855571366"
          "959622842914819860834936475292719074168444365510704342711559699508093042880",
          "0." + "0" * 400 + "1", "2.4703282292062327e-324", "2.4703282292062328e-324", "9007199254740993",
          "1.00000000000000011102230246251565404236316680908203125",
          "1.00000000000000011102230246251565404236316680908203124",
          "1.00000000000000011102230246251565404236316680908203126", "0e0", "-0", "00012", "1e0000000005"]
with open("parse.txt", "w") as file:
    for token in tokens:
        try:
            result = bits(float(token))
        except ValueError:
            result = "error"
        file.write(f"{result} {token.encode().hex() or '-'} {token!r}\n")
