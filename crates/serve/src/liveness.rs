//! Checks that the control thread still works. Each check queues a question among the thread's orders, and the next check reads the answer.

use std::sync::mpsc::{Receiver, channel};

use super::orders::Control;

/// The last question to the control thread.
pub(super) struct Liveness<T> {
    /// Receives the answer to the question. `None`: no question is queued.
    question: Option<Receiver<T>>,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Beat<T> {
    /// A question is queued, and the previous check had queued none, because the queue was full or there was no previous check.
    Asked,
    /// The last question was answered, and a new one is queued.
    Answered(T),
    /// The last question has not been answered yet, or the queue is full.
    None,
}

impl<T: Send + 'static> Liveness<T> {
    pub(super) fn new() -> Liveness<T> {
        Liveness { question: None }
    }

    /// Checks without waiting.
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
            // Sending fails if the receiver is gone.
            let _ = tell.send(question(owner));
        });
        match asked {
            Ok(()) => {
                self.question = Some(told);
                beat
            }
            // The queue is full, so the thread does not empty it.
            Err(_) => Beat::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::orders::{Orders, orders};
    use super::super::waker::WakeSignal;
    use super::*;

    fn work(orders: &Orders<u32>, owner: &mut u32) {
        orders.take().into_iter().for_each(|order| order(owner));
    }

    #[test]
    fn only_a_working_thread_answers() {
        let (control, orders) = orders::<u32>(WakeSignal::new().expect("a bell"));
        let mut liveness = Liveness::new();
        let mut look = || liveness.look(&control, |owner| *owner);
        assert_eq!(look(), Beat::Asked);
        work(&orders, &mut 7);
        assert_eq!(look(), Beat::Answered(7));
        // While the thread is stuck, further checks do not queue more questions.
        assert_eq!(look(), Beat::None);
        assert_eq!(look(), Beat::None);
        assert_eq!(orders.take().len(), 1);
        // The question was dropped without an answer.
        assert_eq!(look(), Beat::None);
    }

    #[test]
    fn a_full_queue_does_not_count_as_an_answer() {
        let (control, orders) = orders::<u32>(WakeSignal::new().expect("a bell"));
        while control.order(|_| ()).is_ok() {}
        let mut liveness = Liveness::new();
        let mut look = || liveness.look(&control, |owner| *owner);
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
