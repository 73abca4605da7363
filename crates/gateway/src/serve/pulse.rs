//! Whether the control thread still does what it is asked: a question is left with its orders, and looked for later.

use std::sync::mpsc::{Receiver, channel};

use super::orders::Control;

/// The last question, and its answer.
pub(super) struct Pulse<T> {
    /// `None`: none is left there.
    question: Option<Receiver<T>>,
}

/// What a look at the pulse finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat<T> {
    /// It is the first look, or the last question did not fit: another one is left there.
    Asked,
    /// The last question is answered, and another one left there.
    Answered(T),
    /// The last question still waits, or there is no room for one.
    None,
}

impl<T: Send + 'static> Pulse<T> {
    pub(super) fn new() -> Pulse<T> {
        Pulse { question: None }
    }

    /// Never waits.
    pub(super) fn look<S>(
        &mut self,
        control: &Control<S>,
        question: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Beat<T> {
        let beat = match self.question.take() {
            None => Beat::Asked,
            Some(told) => match told.try_recv() {
                Ok(answer) => Beat::Answered(answer),
                Err(_) => {
                    self.question = Some(told);
                    return Beat::None;
                }
            },
        };
        let (tell, told) = channel();
        let asked = control.order(move |owner| {
            // Who asked may be gone.
            let _ = tell.send(question(owner));
        });
        match asked {
            Ok(()) => {
                self.question = Some(told);
                beat
            }
            // A queue that is full is not emptied.
            Err(_) => Beat::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::orders::{Orders, orders};
    use super::super::wake::Wake;
    use super::*;

    fn work(orders: &Orders<u32>, owner: &mut u32) {
        orders.take().into_iter().for_each(|order| order(owner));
    }

    #[test]
    fn a_thread_that_works_has_a_pulse_and_one_that_is_stuck_has_none() {
        let (control, orders) = orders::<u32>(Wake::new().expect("a bell"));
        let mut pulse = Pulse::new();
        let mut look = || pulse.look(&control, |owner| *owner);
        assert_eq!(look(), Beat::Asked);
        work(&orders, &mut 7);
        assert_eq!(look(), Beat::Answered(7));
        // Stuck, for two looks: one question waits, however often it is looked for.
        assert_eq!(look(), Beat::None);
        assert_eq!(look(), Beat::None);
        assert_eq!(orders.take().len(), 1);
        // That one was dropped without an answer.
        assert_eq!(look(), Beat::None);
    }

    #[test]
    fn a_queue_that_stays_full_is_no_pulse() {
        let (control, orders) = orders::<u32>(Wake::new().expect("a bell"));
        while control.order(|_| ()).is_ok() {}
        let mut pulse = Pulse::new();
        let mut look = || pulse.look(&control, |owner| *owner);
        assert_eq!(look(), Beat::None);
        assert_eq!(look(), Beat::None);
        for _ in 0..100 {
            work(&orders, &mut 3);
        }
        assert_eq!(look(), Beat::Asked);
        work(&orders, &mut 3);
        assert_eq!(look(), Beat::Answered(3));
    }
}
