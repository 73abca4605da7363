//! Complete uploads in virtual time, compared with a model that has all bytes at once.

use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn plan(on_error: OnError, attempts: Option<u32>) -> Plan {
    Plan {
        sizes: Sizes::tiny(100),
        at_once: 2,
        retries: Retries {
            attempts,
            ..Retries::default()
        },
        on_error,
    }
}

/// A store that keeps all requests' data, and fails on demand.
#[derive(Default)]
struct Store {
    uploads: BTreeMap<String, BTreeMap<u16, Vec<u8>>>,
    object: Option<Vec<u8>>,
    created: u32,
}

/// Fate of a request.
#[derive(Debug, Clone, Copy)]
enum Fate {
    Done,
    Slow,
    Refused,
}

fn slow() -> Error {
    Error::Refused {
        status: 503,
        code: "SlowDown".into(),
        message: String::new(),
        retry_after_ms: None,
    }
}

fn refused() -> Error {
    Error::Refused {
        status: 403,
        code: "AccessDenied".into(),
        message: String::new(),
        retry_after_ms: None,
    }
}

/// An upload with its store and its bytes.
struct Rig {
    core: Core,
    store: Store,
    now_ns: u64,
    parts: BTreeMap<u16, Vec<u8>>,
    running: Vec<Task>,
    most_running: usize,
}

impl Rig {
    fn new(plan: Plan) -> Rig {
        Rig {
            core: Core::new(plan),
            store: Store::default(),
            now_ns: 0,
            parts: BTreeMap::new(),
            running: Vec::new(),
            most_running: 0,
        }
    }

    fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let take = bytes.len().min(usize::try_from(self.core.room()).unwrap());
            if take == 0 {
                return;
            }
            let (number, _) = self.core.filling();
            self.parts
                .entry(number)
                .or_default()
                .extend_from_slice(&bytes[..take]);
            self.core.handle_data(take as u64);
            bytes = &bytes[take..];
        }
    }

    fn drain(&mut self) {
        while let Some(task) = self.core.poll_task(self.now_ns) {
            self.running.push(task);
        }
        let parts = self
            .running
            .iter()
            .filter(|task| matches!(task, Task::Part(_)));
        self.most_running = self.most_running.max(parts.count());
        while let Some(number) = self.core.poll_released() {
            assert!(
                self.parts.remove(&number).is_some(),
                "part {number} is released once"
            );
        }
    }

    fn answer(&mut self, index: usize, fate: Fate, random: u64) {
        let task = self.running.remove(index % self.running.len());
        let error = match fate {
            Fate::Done => {
                let answer = self.carry_out(task);
                self.core.handle_done(task, answer);
                return;
            }
            Fate::Slow => slow(),
            Fate::Refused => refused(),
        };
        self.core.handle_failed(task, error, self.now_ns, random);
    }

    fn carry_out(&mut self, task: Task) -> Answer {
        let id = self.core.upload().unwrap_or_default().to_owned();
        match task {
            Task::Create => {
                self.store.created += 1;
                let id = format!("upload {}", self.store.created);
                self.store.uploads.insert(id.clone(), BTreeMap::new());
                Answer::Upload(id)
            }
            Task::Put => {
                self.store.object = Some(self.parts.get(&1).cloned().unwrap_or_default());
                Answer::Etag("put".into())
            }
            Task::Part(number) => {
                let bytes = self.parts[&number].clone();
                self.store
                    .uploads
                    .get_mut(&id)
                    .expect("an upload")
                    .insert(number, bytes);
                Answer::Etag(format!("etag {number}"))
            }
            Task::Complete => {
                let parts = self.store.uploads.remove(&id).expect("an upload");
                let named: Vec<u16> = self.core.parts().map(|(number, _)| number).collect();
                assert!(!named.is_empty());
                self.store.object = Some(
                    named
                        .iter()
                        .flat_map(|number| parts[number].clone())
                        .collect(),
                );
                Answer::Etag("whole".into())
            }
            Task::Abort => {
                self.store.uploads.remove(&id);
                Answer::Gone
            }
        }
    }

    /// Continues until the upload has ended.
    fn finish(&mut self, fates: &mut impl Iterator<Item = (usize, Fate, u64)>) -> Outcome {
        for _ in 0..100_000 {
            self.drain();
            if let Some(outcome) = self.core.outcome() {
                return outcome.clone();
            }
            if !self.running.is_empty() {
                let (index, fate, random) = fates.next().unwrap_or((0, Fate::Done, 0));
                self.answer(index, fate, random);
            } else {
                self.now_ns = self.core.next_timeout().expect("something is to come")
            }
        }
        panic!("it does not end");
    }
}

fn bytes_of(lengths: &[usize]) -> Vec<u8> {
    (0..lengths.iter().sum::<usize>())
        .map(|n| u8::try_from(n % 251).unwrap())
        .collect()
}

fn fate() -> impl Strategy<Value = (usize, Fate, u64)> {
    let fate = prop_oneof![6 => Just(Fate::Done), 3 => Just(Fate::Slow), 1 => Just(Fate::Refused)];
    (any::<usize>(), fate, any::<u64>())
}

proptest! {
    /// These invariants hold for any pieces of data and any order of responses. The upload ends, and the object has every byte
    /// once and in order. The number of concurrent parts stays within its maximum. All memory is released, and the store keeps
    /// only data that the policy allows.
    #[test]
    fn every_byte_arrives_once_or_the_store_keeps_what_the_policy_allows(
        lengths in prop::collection::vec(1..250usize, 0..20),
        fates in prop::collection::vec(fate(), 0..60),
        on_error in prop_oneof![Just(OnError::Abort), Just(OnError::Complete), Just(OnError::DoNothing)],
        attempts in prop_oneof![Just(None), (1..4u32).prop_map(Some)],
        between in prop::collection::vec(0..3usize, 20),
    ) {
        let bytes = bytes_of(&lengths);
        let mut fates = fates.into_iter();
        let mut rig = Rig::new(plan(on_error, attempts));
        let mut at = 0;
        for (length, steps) in lengths.iter().zip(between) {
            rig.feed(&bytes[at..at + length]);
            at += length;
            for _ in 0..steps {
                rig.drain();
                if !rig.running.is_empty() {
                    let (index, fate, random) = fates.next().unwrap_or((0, Fate::Done, 0));
                    rig.answer(index, fate, random);
                }
            }
        }
        rig.core.handle_end();
        if bytes.is_empty() {
            rig.parts.insert(1, Vec::new());
        }
        let outcome = rig.finish(&mut fates);
        while let Some(number) = rig.core.poll_released() {
            prop_assert!(rig.parts.remove(&number).is_some());
        }
        prop_assert!(rig.most_running <= 2);
        match outcome {
            Outcome::Stored { .. } => {
                prop_assert_eq!(rig.store.object.as_deref(), Some(&bytes[..]));
                prop_assert!(rig.store.uploads.is_empty());
                prop_assert!(rig.parts.is_empty(), "left in memory: {:?}", rig.parts.keys());
                // A small object is one request. If the object has exactly one part, an upload may have begun before the end was
                // known.
                prop_assert!(rig.store.created == 0 || bytes.len() >= 100);
            }
            Outcome::Failed(error) => {
                prop_assert!(error == slow() || error == refused());
                match (on_error, &rig.store.object) {
                    (OnError::Complete, Some(object)) => prop_assert!(bytes.starts_with(object)),
                    (_, object) => prop_assert_eq!(object, &None),
                }
            }
        }
    }
}

#[test]
fn a_small_object_is_one_request() {
    for length in [0, 1, 99, 100] {
        let mut rig = Rig::new(plan(OnError::Abort, Some(1)));
        rig.feed(&bytes_of(&[length]));
        if length < 100 {
            rig.drain();
            assert_eq!(rig.running, []);
        }
        if length == 0 {
            rig.parts.insert(1, Vec::new());
        }
        rig.core.handle_end();
        rig.drain();
        assert_eq!(rig.running, [Task::Put], "{length}");
    }
}

#[test]
fn failure_aborts_after_running_requests_end() {
    let mut rig = Rig::new(plan(OnError::Abort, Some(5)));
    rig.feed(&bytes_of(&[300]));
    rig.drain();
    rig.answer(0, Fate::Done, 0);
    rig.drain();
    assert_eq!(rig.running, [Task::Part(1), Task::Part(2)]);
    rig.answer(0, Fate::Refused, 0);
    rig.drain();
    assert_eq!(
        rig.running,
        [Task::Part(2)],
        "no abort yet, and no further part"
    );
    rig.answer(0, Fate::Done, 0);
    rig.drain();
    assert_eq!(rig.running, [Task::Abort]);
    assert_eq!(
        rig.finish(&mut std::iter::empty()),
        Outcome::Failed(refused())
    );
    assert!(rig.store.uploads.is_empty() && rig.parts.is_empty());
}

#[test]
fn failure_completes_with_the_complete_parts() {
    let mut rig = Rig::new(plan(OnError::Complete, Some(5)));
    let bytes = bytes_of(&[400]);
    rig.feed(&bytes);
    let fates = [
        (0, Fate::Done, 0),
        (0, Fate::Done, 0),
        (0, Fate::Refused, 0),
        (0, Fate::Done, 0),
    ];
    assert_eq!(
        rig.finish(&mut fates.into_iter()),
        Outcome::Failed(refused())
    );
    assert_eq!(
        rig.store.object.as_deref(),
        Some(&bytes[..100]),
        "part 3 is behind a gap"
    );
}

#[test]
fn pauses_grow_and_are_bounded() {
    let retries = Retries {
        attempts: None,
        request_ns: None,
        ..Retries::default()
    };
    let mut rig = Rig::new(Plan {
        retries,
        ..plan(OnError::Abort, None)
    });
    rig.feed(&bytes_of(&[100]));
    rig.feed(&bytes_of(&[1]));
    let mut pauses = Vec::new();
    for _ in 0..8 {
        rig.drain();
        rig.answer(0, Fate::Slow, 0);
        let at = rig.core.next_timeout().unwrap();
        pauses.push(at - rig.now_ns);
        rig.now_ns = at;
    }
    // Half of 0.5 s, doubled each time, up to half of 10 s.
    let expected = [1, 2, 4, 8, 16, 20, 20, 20].map(|quarters: u64| quarters * SECOND / 4);
    assert_eq!(pauses, expected);
    assert_eq!(rig.core.retries(), 8);
}

#[test]
fn retries_end_by_number_and_by_time() {
    let by_time = Retries {
        attempts: None,
        request_ns: Some(3 * SECOND),
        ..Retries::default()
    };
    let by_number = Retries {
        attempts: Some(3),
        ..Retries::default()
    };
    for (retries, expected) in [(by_number, 3), (by_time, 4)] {
        let mut rig = Rig::new(Plan {
            retries,
            ..plan(OnError::Abort, None)
        });
        rig.feed(&bytes_of(&[101]));
        let mut attempts = 0;
        while rig.core.outcome().is_none() {
            rig.drain();
            match rig.running.is_empty() {
                false => {
                    attempts += 1;
                    rig.answer(0, Fate::Slow, 0);
                }
                true if rig.core.outcome().is_none() => {
                    rig.now_ns = rig.core.next_timeout().unwrap()
                }
                true => {}
            }
        }
        assert_eq!(attempts, expected);
    }
}

#[test]
fn a_store_may_request_a_pause() {
    let mut rig = Rig::new(plan(OnError::Abort, Some(5)));
    rig.feed(&bytes_of(&[101]));
    rig.drain();
    let error = Error::Refused {
        status: 503,
        code: String::new(),
        message: String::new(),
        retry_after_ms: Some(30_000),
    };
    rig.core.handle_failed(Task::Create, error, 0, 0);
    assert_eq!(rig.core.next_timeout(), Some(30 * SECOND));
}

#[test]
fn the_oldest_part_that_waits_is_dropped() {
    let mut rig = Rig::new(plan(OnError::Abort, Some(5)));
    let bytes = bytes_of(&[500]);
    rig.feed(&bytes);
    rig.drain();
    rig.answer(0, Fate::Done, 0);
    rig.drain();
    assert_eq!(rig.core.drop_oldest(), Some(100), "1 and 2 are under way");
    rig.core.handle_end();
    assert!(matches!(
        rig.finish(&mut std::iter::empty()),
        Outcome::Stored { .. }
    ));
    assert_eq!(
        rig.store.object,
        Some([&bytes[..200], &bytes[300..]].concat())
    );
    assert_eq!(rig.core.bytes(), (400, 0, 100));
}

#[test]
fn upload_of_an_earlier_process_is_resumed() {
    let done = BTreeMap::from([(
        1,
        DonePart {
            etag: "etag 1".into(),
            bytes: 100,
        },
    )]);
    let core = Core::resumed(
        plan(OnError::Abort, None),
        Some("upload 1".into()),
        done,
        [(2, 100), (3, 7)],
    );
    let mut rig = Rig {
        core,
        ..Rig::new(plan(OnError::Abort, None))
    };
    let bytes = bytes_of(&[207]);
    let before = BTreeMap::from([(1, bytes[..100].to_vec())]);
    rig.store.uploads.insert("upload 1".into(), before);
    rig.parts = BTreeMap::from([(2, bytes[100..200].to_vec()), (3, bytes[200..].to_vec())]);
    assert!(matches!(
        rig.finish(&mut std::iter::empty()),
        Outcome::Stored { .. }
    ));
    assert_eq!(rig.store.object, Some(bytes));
}

#[test]
fn resuming_an_upload_whose_parts_are_all_stored_uploads_no_part_again() {
    let done = BTreeMap::from([(
        1,
        DonePart {
            etag: "etag 1".into(),
            bytes: 100,
        },
    )]);
    let mut core = Core::resumed(plan(OnError::Abort, None), Some("u".into()), done, []);
    assert_eq!(core.poll_task(0), Some(Task::Complete));
    assert_eq!(core.poll_task(0), None);
}

#[test]
fn no_request_follows_the_last_part() {
    let mut core = Core::new(plan(OnError::Abort, None));
    for _ in 0..PARTS_MAX {
        let room = core.room();
        assert!(room > 0);
        core.handle_data(room);
    }
    assert_eq!(core.room(), 0);
}
