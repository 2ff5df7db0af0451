#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""wgmma_registers.py: reads `cuobjdump -sass` from files or standard input and prints each instruction that writes a register
which a product of warpgroups may still read (its left operand) or write (its sums), or reads a register of such sums.

wgmma reads registers after the instruction has been issued, until a wait says that the product is done. With branches
between the two nvcc 13.0 has given the registers of a left operand away, and no tool said so. Every path from a product to its
wait is followed. One line a finding: KERNEL ADDRESS INSTRUCTION: REGISTER of PRODUCT's ADDRESS. Exits with 1 if there are any,
with 2 if there was no product.
"""
import re
import sys

LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z0-9_.a-z]+)\s*([^;]*);")
FUNCTION = re.compile(r"^\s*Function : (\S+)")
REGISTER = re.compile(r"(?<![A-Z])R(\d+)")
NO_RESULT = ("ST", "RED", "BAR", "BRA", "EXIT", "WARPSYNC", "BSSY", "BSYNC", "BREAK", "RET", "CALL", "SYNCS", "UTMA", "R2UR",
             "MEMBAR", "FENCE", "ERRBAR", "NOP", "YIELD", "DEPBAR", "NANOSLEEP", "CCTL", "VOTE", "USETMAXREG", "LDGSTS", "LDGDEPBAR",
             "BPT", "KILL", "PREEXIT", "ACQBULK", "UBLKCP", "UBLKRED", "UCGABAR", "CGAERRBAR", "ELECT", "R2P", "BRX", "JMX", "JMP")
DEPTH = 4  # groups of products that may be under way


def width(opcode):
    """Number of registers of the result of an instruction that is no product of warpgroups."""
    parts = opcode.split(".")
    if parts[0] == "LDSM":
        return int(parts[-1]) if parts[-1].isdigit() else 1
    if "128" in parts or parts[0] in ("HMMA", "QMMA", "IMMA"):
        return 4
    return 2 if "64" in parts or "WIDE" in parts or parts[0] in ("DADD", "DMUL", "DFMA") else 1


class Instruction:
    def __init__(self, address, guard, opcode, text):
        self.address, self.guard, self.opcode, self.text = address, guard, opcode, text
        self.base = opcode.split(".")[0]
        self.product = self.base in ("HGMMA", "QGMMA", "IGMMA", "BGMMA")
        self.operands = [part.strip() for part in text.split(",")]
        self.left = self.sums = ()
        if self.product:
            self.read_product()

    def registers(self, operand, count):
        found = REGISTER.match(operand)
        return tuple(range(int(found[1]), int(found[1]) + count)) if found else ()

    def read_product(self):
        shape = re.search(r"\.(\d+)x(\d+)x(\d+)", self.opcode)
        parts = self.opcode.split(".")
        count = int(shape[2]) // 2 if "F32" in parts or "S32" in parts else int(shape[2]) // 4
        self.sums = self.registers(self.operands[0], count)
        self.left = self.registers(self.operands[1], 4)
        self.commits = "gsb0" in self.text

    def written(self):
        if self.product or self.base.startswith(NO_RESULT):
            return ()
        for index, operand in enumerate(self.operands[:2]):
            if REGISTER.match(operand):
                return self.registers(operand, width(self.opcode))
            if not re.match(r"U?P\d|U?PT", operand):
                return ()
        return ()

    def targets(self, following):
        """Addresses that may come next; `following` is the next in the text."""
        if self.base in ("EXIT", "RET", "KILL", "BPT"):
            return [following] if self.guard else []
        if self.base in ("BRA", "JMP"):
            to = re.findall(r"0x([0-9a-f]+)", self.text)
            conditional = self.guard or re.match(r"!?U?P\d|~?UR", self.text)
            return [int(to[-1], 16)] * bool(to) + [following] * bool(conditional)
        return [following]


def functions(lines):
    name, found = None, []
    for line in lines:
        begins = FUNCTION.match(line)
        if begins:
            if found:
                yield name, found
            name, found = begins[1], []
        elif name:
            part = LINE.match(line)
            if part:
                found.append(Instruction(int(part[1], 16), part[2], part[3], part[4].strip()))
    if found:
        yield name, found


def step(pending, instruction):
    """What is under way after an instruction: groups, the last one open, each a set of (product, kind, register)."""
    if instruction.product:
        own = {(instruction.address, "left", r) for r in instruction.left} | {(instruction.address, "sums", r) for r in instruction.sums}
        pending = pending[:-1] + (pending[-1] | own,)
        if instruction.commits:
            pending += (frozenset(),)
        return pending[-DEPTH - 1:]
    if instruction.opcode.startswith("WARPGROUP.DEPBAR"):
        left = int(re.search(r"gsb0, 0x([0-9a-f]+)", instruction.text)[1], 16)
        done = pending[:-1]
        return (done[len(done) - left:] if left else ()) + (pending[-1],)
    return pending


def findings(instructions):
    place = {one.address: index for index, one in enumerate(instructions)}
    work = [(index, (frozenset(),)) for index, one in enumerate(instructions) if one.product]
    seen, found = set(), {}
    while work:
        index, pending = work.pop()
        while (index, pending) not in seen:
            seen.add((index, pending))
            one = instructions[index]
            if not one.product:
                written = set(one.written())
                read = {int(r) for operand in one.operands for r in REGISTER.findall(operand)} if any(pending) else set()
                for group in pending:
                    for product, kind, register in group:
                        if register in written or kind == "sums" and register in read:
                            found.setdefault(one.address, (one, register, kind, product))
            pending = step(pending, one)
            if not any(pending):
                break
            following = instructions[index + 1].address if index + 1 < len(instructions) else None
            targets = [place[a] for a in one.targets(following) if a in place]
            if not targets:
                break
            work += [(to, pending) for to in targets[1:]]
            index = targets[0]
    return [found[address] for address in sorted(found)]


def main():
    products = wrong = 0
    for path in sys.argv[1:] or ["-"]:
        with sys.stdin if path == "-" else open(path) as text:
            for name, instructions in functions(text):
                products += sum(one.product for one in instructions)
                for one, register, kind, product in findings(instructions):
                    print(f"{name} {one.address:04x} {one.opcode} {one.text}: R{register} of {product:04x} ({kind})")
                    wrong += 1
    print(f"{products} products, {wrong} findings", file=sys.stderr)
    return 1 if wrong else 0 if products else 2


if __name__ == "__main__":
    sys.exit(main())
