// What the parts of the page share, and telling them when it changes.

/** A store of named values: `store.get(name)`, `store.set({name: value})`, `store.on([names], listener)`. */
export function createStore(values) {
  const listeners = new Set();
  return {
    get: (name) => values[name],
    set(changes) {
      const changed = Object.keys(changes).filter((name) => !Object.is(values[name], changes[name]));
      if (!changed.length) return;
      values = { ...values, ...changes };
      for (const [names, listener] of [...listeners]) if (changed.some((name) => names.includes(name))) listener(values);
    },
    on(names, listener) {
      const entry = [names, listener];
      listeners.add(entry);
      return () => listeners.delete(entry);
    },
  };
}
