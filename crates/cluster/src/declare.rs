//! Writes declarations of the streams of a node's file to etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use threadbare_member::{
    Declaration, Key, Kind, Operation, RequestId, StreamName, Transaction, VALUE_BYTES_MAX, Value,
};

use threadbare_config::StreamSpec;

/// The declarations to be written, and the state of the write.
#[derive(Debug, Default)]
pub(super) struct Declared {
    /// Names of the streams in the file when it was last read.
    names: BTreeSet<StreamName>,
    /// Declarations to be written; `None` deletes the declaration.
    due: BTreeMap<StreamName, Option<Declaration>>,
    /// Declarations that are being written.
    asked: Option<Vec<(StreamName, Option<Declaration>)>>,
}

impl Declared {
    /// Sets the file's streams.
    pub(super) fn set(&mut self, streams: Vec<StreamSpec>) {
        let before = std::mem::take(&mut self.names);
        for spec in streams {
            let name = StreamName(spec.name.as_str().into());
            self.names.insert(name.clone());
            self.due.insert(name, Some(declaration(&spec)));
        }
        for name in before.difference(&self.names) {
            self.due.insert(name.clone(), None);
        }
    }

    /// Adds a declaration to be written, unless a write for this name is due already.
    pub(super) fn add(&mut self, name: &StreamName, declaration: &Declaration) {
        self.due
            .entry(name.clone())
            .or_insert_with(|| Some(declaration.clone()));
    }

    /// Returns the next write. Skips declarations that `known` already contains. `None`: nothing is due, or a write is in
    /// progress.
    pub(super) fn next<'a>(
        &mut self,
        known: impl Fn(&StreamName) -> Option<&'a Declaration>,
    ) -> Option<Transaction> {
        if self.asked.is_some() {
            return None;
        }
        self.due.retain(|name, declaration| {
            let known = known(name);
            if let (Some(wanted), Some(known)) = (declaration.as_mut(), known) {
                // Keep the value of this field, because the file does not set it.
                wanted.at.clone_from(&known.at);
            }
            known != declaration.as_ref()
        });
        let now = self.due.iter().take(TOGETHER_MAX);
        let now: Vec<_> = now
            .map(|(name, what)| (name.clone(), what.clone()))
            .collect();
        if now.is_empty() {
            return None;
        }
        let operation = |(name, what): &(StreamName, Option<Declaration>)| {
            let key = Key::Stream(name.clone());
            match what {
                Some(declaration) => Operation::Put(key, Value::Stream(declaration.clone())),
                None => Operation::Delete(key),
            }
        };
        let then: Vec<Operation> = now.iter().map(operation).filter(fits).collect();
        self.asked = Some(now);
        Some(Transaction {
            // The reply is not matched by its number.
            id: RequestId(u64::MAX),
            when: Vec::new(),
            then,
        })
    }

    /// Handles the result of a write. A failed write is due again.
    pub(super) fn answered(&mut self, is_written: bool) {
        for (name, what) in self.asked.take().into_iter().flatten() {
            // If the file has changed in the meantime, the new declaration is still due.
            if is_written && self.due.get(&name) == Some(&what) {
                self.due.remove(&name);
            }
        }
    }
}

fn declaration(spec: &StreamSpec) -> Declaration {
    let place = &spec.placement;
    Declaration {
        kind: Kind::Stream,
        prefer: place.prefer.clone(),
        avoid: place.avoid.clone(),
        on_isolation: place.on_isolation,
        at: None,
        spec: Arc::from(spec.to_toml()),
    }
}

fn fits(operation: &Operation) -> bool {
    let Operation::Put(key, value) = operation else {
        return true;
    };
    let bytes = value.to_bytes().map_or(usize::MAX, |json| json.len());
    if bytes > VALUE_BYTES_MAX {
        let key = key.path();
        tracing::error!(
            key,
            bytes,
            allowed = VALUE_BYTES_MAX,
            "the declaration of a stream is too long for etcd: no node carries the stream"
        );
    }
    bytes <= VALUE_BYTES_MAX
}

/// Maximum number of declarations in a transaction. etcd allows 128 operations and 1.5 MB.
const TOGETHER_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use threadbare_config::Config;

    fn streams(text: &str) -> Vec<StreamSpec> {
        let text = format!("[cluster]\nnode = \"a\"\nendpoints = [\"http://etcd:2379\"]\n{text}");
        Config::from_toml("test", &text).expect("good").streams
    }

    fn stream(name: &str, more: &str) -> String {
        let port = 5000 + 2 * u32::from(name.as_bytes()[0]);
        format!("[[stream]]\nname = \"{name}\"\nlisten = \"239.0.0.1:{port}\"\n{more}\n")
    }

    fn written(transaction: Option<Transaction>) -> Vec<String> {
        let paths = transaction.into_iter().flat_map(|one| one.then);
        let path = |operation| match operation {
            Operation::Put(key, _) => key.path(),
            Operation::Delete(key) => format!("-{}", key.path()),
        };
        paths.map(path).collect()
    }

    #[test]
    fn changes_are_written_until_etcd_has_them() {
        let mut declared = Declared::default();
        let (a, b) = (stream("a", "prefer = [\"x\"]"), stream("b", ""));
        declared.set(streams(&format!("{a}{b}")));
        let known = declaration(&streams(&a)[0]);
        let name = StreamName::from("a");
        let knows = |asked: &StreamName| (*asked == name).then_some(&known);
        let b_alone = ["/threadbare/streams/b"];
        assert_eq!(written(declared.next(knows)), b_alone);
        // The first declaration is still being written.
        assert!(declared.next(knows).is_none());
        declared.answered(false);
        assert_eq!(written(declared.next(knows)), b_alone);
        declared.answered(true);
        assert!(declared.next(knows).is_none());
        // The wanted owner changes, and b is removed.
        declared.set(streams(&stream("a", "")));
        let due = ["/threadbare/streams/a"];
        assert_eq!(written(declared.next(knows)), due);
    }

    /// An operator has moved the stream.
    #[test]
    fn settings_absent_from_the_file_are_kept() {
        let mut declared = Declared::default();
        let file = streams(&stream("a", ""));
        declared.set(file.clone());
        let known = Declaration {
            at: Some("relay-2".into()),
            ..declaration(&file[0])
        };
        assert!(declared.next(|_| Some(&known)).is_none());
    }

    #[test]
    fn streams_removed_from_the_file_are_deleted() {
        let mut declared = Declared::default();
        let file = streams(&stream("b", ""));
        declared.set(file.clone());
        declared.set(Vec::new());
        let known = declaration(&file[0]);
        let due = ["-/threadbare/streams/b"];
        assert_eq!(written(declared.next(|_| Some(&known))), due);
    }
}
