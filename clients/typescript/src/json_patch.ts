// RFC 6902 operations on JSON values. Values are never changed in place: the result shares what did not change.

export interface PatchOperation {
  op: "add" | "remove" | "replace" | "move" | "copy" | "test";
  path: string;
  from?: string;
  value?: unknown;
}

/** Return a value with all operations applied; throw if one cannot be applied. */
export function applyPatch(value: unknown, operations: readonly PatchOperation[]): unknown {
  return operations.reduce(applyOperation, value);
}

function applyOperation(value: unknown, operation: PatchOperation): unknown {
  const path = parsePointer(operation.path);
  switch (operation.op) {
    case "add":
      return change(value, path, operation.value, "add");
    case "replace":
      return change(value, path, operation.value, "replace");
    case "remove":
      return change(value, path, undefined, "remove");
    case "move": {
      const from = parsePointer(operation.from ?? "");
      if (operation.path.startsWith(`${operation.from}/`)) throw new TypeError(`cannot move ${operation.from} into itself`);
      return change(change(value, from, undefined, "remove"), path, read(value, from), "add");
    }
    case "copy":
      return change(value, path, read(value, parsePointer(operation.from ?? "")), "add");
    case "test":
      if (!isEqual(read(value, path), operation.value)) throw new TypeError(`the test of ${operation.path} failed`);
      return value;
    default:
      throw new TypeError(`unknown patch operation ${JSON.stringify((operation as PatchOperation).op)}`);
  }
}

function parsePointer(pointer: string): string[] {
  if (pointer === "") return [];
  if (!pointer.startsWith("/")) throw new TypeError(`invalid JSON pointer ${JSON.stringify(pointer)}`);
  return pointer.slice(1).split("/").map((part) => part.replace(/~1/g, "/").replace(/~0/g, "~"));
}

function read(value: unknown, path: readonly string[]): unknown {
  return path.reduce((at, key) => child(at, key), value);
}

function child(value: unknown, key: string): unknown {
  if (Array.isArray(value)) return value[indexOf(value, key, value.length - 1)] as unknown;
  if (isObject(value) && Object.hasOwn(value, key)) return value[key];
  throw new TypeError(`there is no ${JSON.stringify(key)}`);
}

function change(value: unknown, path: readonly string[], given: unknown, how: "add" | "replace" | "remove"): unknown {
  const [key, ...rest] = path;
  if (key === undefined) return how === "remove" ? null : given;
  if (rest.length) return replaceChild(value, key, change(child(value, key), rest, given, how));
  if (how !== "add") child(value, key); // it must exist
  if (Array.isArray(value)) {
    const copy = value.slice() as unknown[];
    if (how === "add") copy.splice(key === "-" ? copy.length : indexOf(copy, key, copy.length), 0, given);
    else if (how === "remove") copy.splice(indexOf(copy, key, copy.length - 1), 1);
    else copy[indexOf(copy, key, copy.length - 1)] = given;
    return copy;
  }
  if (!isObject(value)) throw new TypeError(`${JSON.stringify(key)} is not inside an object or array`);
  if (how !== "remove") return replaceChild(value, key, given);
  return Object.fromEntries(Object.entries(value).filter(([name]) => name !== key));
}

function replaceChild(value: unknown, key: string, given: unknown): unknown {
  if (Array.isArray(value)) return value.with(indexOf(value, key, value.length - 1), given);
  // `fromEntries` defines the key `__proto__` as any other; an assignment would not.
  const entries = Object.entries(value as Record<string, unknown>);
  const at = entries.findIndex(([name]) => name === key);
  return Object.fromEntries(at < 0 ? [...entries, [key, given]] : entries.with(at, [key, given]));
}

function indexOf(list: readonly unknown[], key: string, last: number): number {
  const index = Number(key);
  if (!/^(0|[1-9]\d*)$/.test(key) || index > last) throw new TypeError(`there is no index ${key} in a list of ${list.length}`);
  return index;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isEqual(one: unknown, other: unknown): boolean {
  if (Array.isArray(one) && Array.isArray(other)) return one.length === other.length && one.every((item, at) => isEqual(item, other[at]));
  if (!isObject(one) || !isObject(other)) return Object.is(one, other);
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => Object.hasOwn(other, name) && isEqual(one[name], other[name]));
}
