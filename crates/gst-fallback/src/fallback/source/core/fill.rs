//! Decides when silence and black are produced: while no source delivers a stream of that kind. At the start, sources first get
//! some time to deliver.

use super::{Action, MAIN, SourceCore, SourceId};

/// Kind of a stream. The element has an output for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Kind {
    Audio,
    Video,
}

#[derive(Debug, Default)]
pub(super) struct Outputs(Vec<Output>);

#[derive(Debug)]
struct Output {
    kind: Kind,
    sources: Vec<Stream>,
    active: Option<SourceId>,
    is_filling: bool,
    /// Whether the output has ended with the main source's stream.
    has_ended: bool,
}

/// A stream of one source.
#[derive(Debug, Clone, Default)]
struct Stream {
    is_healthy: bool,
    /// Whether the source is known to have no such stream.
    is_absent: bool,
}

impl Outputs {
    pub(super) fn new(kinds: &[Kind], sources: usize) -> Self {
        let output = |kind: &Kind| Output {
            kind: *kind,
            sources: vec![Stream::default(); sources],
            active: None,
            is_filling: false,
            has_ended: false,
        };
        Outputs(kinds.iter().map(output).collect())
    }

    fn of(&mut self, kind: Kind) -> Option<&mut Output> {
        self.0.iter_mut().find(|output| output.kind == kind)
    }

    fn stream(&mut self, kind: Kind, source: SourceId) -> Option<&mut Stream> {
        self.of(kind)?.sources.get_mut(source)
    }

    pub(super) fn set_healthy(&mut self, kind: Kind, source: SourceId, is_healthy: bool) {
        if let Some(stream) = self.stream(kind, source) {
            stream.is_healthy = is_healthy;
        }
    }

    pub(super) fn set_active(&mut self, kind: Kind, active: Option<SourceId>) {
        if let Some(output) = self.of(kind) {
            output.active = active;
        }
    }

    /// Notes the end of the main source's stream.
    pub(super) fn end(&mut self, kind: Kind) {
        if let Some(output) = self.of(kind) {
            output.has_ended |= output.active == Some(MAIN);
        }
    }

    pub(super) fn has_ended(&self, kind: Kind) -> bool {
        let mut outputs = self.0.iter();
        outputs.any(|output| output.kind == kind && output.has_ended)
    }

    pub(super) fn is_active(&self, source: SourceId) -> bool {
        self.0.iter().any(|output| output.active == Some(source))
    }

    pub(super) fn set_absent(&mut self, kind: Kind, source: SourceId, is_absent: bool) {
        if let Some(stream) = self.stream(kind, source) {
            stream.is_absent = is_absent;
        }
    }
}

impl SourceCore {
    /// Whether silence or black of this kind must be produced now.
    pub(in super::super) fn fills(&self, kind: Kind) -> bool {
        let mut outputs = self.outputs.0.iter();
        outputs.any(|output| output.kind == kind && output.is_filling)
    }

    pub(super) fn decide_fill(&mut self) {
        for at in 0..self.outputs.0.len() {
            let is_filling = self.needs_fill(&self.outputs.0[at]);
            let output = &mut self.outputs.0[at];
            if std::mem::replace(&mut output.is_filling, is_filling) != is_filling {
                let kind = output.kind;
                self.actions.push_back(Action::Fill(kind, is_filling));
            }
        }
    }

    fn needs_fill(&self, output: &Output) -> bool {
        let has_ended = self.has_ended || output.has_ended;
        if !self.settings.has_fill || self.started_ns.is_none() || has_ended {
            return false;
        }
        let is_healthy = |id: SourceId| output.sources.get(id).is_some_and(|s| s.is_healthy);
        if output.active.is_some_and(is_healthy) {
            return false;
        }
        // The fill continues until a source passes, because a source that delivers again may have to wait for its turn.
        output.is_filling
            || !(0..output.sources.len()).any(|id| is_healthy(id) || self.is_awaited(output, id))
    }

    /// Whether the output waits for this source. At the start, it waits for the first data of the sources that are starting.
    fn is_awaited(&self, output: &Output, id: SourceId) -> bool {
        let is_over = self.start_ends_ns().is_some_and(|ns| ns <= self.now_ns);
        let source = &self.sources[id];
        !self.settings.immediate_fallback
            && !is_over
            && id <= MAIN + 1
            && !output.sources[id].is_absent
            && !source.is_failing(self.now_ns, &self.settings)
    }

    pub(super) fn start_ends_ns(&self) -> Option<u64> {
        Some(self.started_ns?.saturating_add(self.settings.timeout_ns))
    }
}
