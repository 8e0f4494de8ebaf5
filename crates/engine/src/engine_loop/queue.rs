//! The queue of waiting requests: classes take turns by weight, and the groups of a class in
//! rotation.

use std::collections::VecDeque;

use crate::api::Priority;

/// Requests that wait to be admitted.
///
/// When all classes wait, 16 of 21 turns are interactive, 4 normal and 1 background. Between two
/// turns of a waiting class, each other class has at most one turn more than the ratio of their
/// weights, so none starves. Within a class, the requests of each group form a line, and lines take
/// turns round-robin: a hundred requests of one client delay another client's first request by one
/// turn.
///
/// Start-time fair queueing (Goyal, Vin, Cheng 1996) with every request of the same length.
pub(crate) struct Queue<T> {
    /// By [`Priority`].
    classes: [Class<T>; 3],
    /// When the last turn began, in virtual time.
    now: u64,
}

struct Class<T> {
    lines: VecDeque<(u64, VecDeque<T>)>,
    /// When its next turn begins, in virtual time.
    next: u64,
}

impl<T> Queue<T> {
    pub(crate) fn new() -> Queue<T> {
        Queue { classes: std::array::from_fn(|_| Class { lines: VecDeque::new(), next: 0 }), now: 0 }
    }

    pub(crate) fn push(&mut self, priority: Priority, group: u64, request: T) {
        let class = &mut self.classes[priority as usize];
        if class.lines.is_empty() {
            // An absent class saves up no turns.
            class.next = class.next.max(self.now);
        }
        match class.lines.iter_mut().find(|(line, _)| *line == group) {
            Some((_, line)) => line.push_back(request),
            None => class.lines.push_back((group, VecDeque::from([request]))),
        }
    }

    /// The next request of the classes that `may` allows.
    pub(crate) fn pop(&mut self, may: impl Fn(Priority) -> bool) -> Option<T> {
        let waits = |p: &Priority| !self.classes[*p as usize].lines.is_empty() && may(*p);
        // The first of equals, which is the more urgent.
        let turn = Priority::ALL.into_iter().filter(waits).min_by_key(|p| self.classes[*p as usize].next)?;
        let class = &mut self.classes[turn as usize];
        // A class that `may` excluded for a while has an earlier turn; virtual time only grows.
        self.now = self.now.max(class.next);
        class.next += turn.stride() as u64;
        let (group, mut line) = class.lines.pop_front()?;
        let request = line.pop_front();
        if !line.is_empty() {
            class.lines.push_back((group, line));
        }
        request
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.lines.is_empty())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.classes.iter().flat_map(|class| &class.lines).flat_map(|(_, line)| line)
    }

    /// Removes the requests for which `leaves` is true.
    pub(crate) fn extract(&mut self, leaves: impl Fn(&T) -> bool) -> Vec<T> {
        let mut left = vec![];
        for Class { lines, .. } in &mut self.classes {
            for (_, line) in lines.iter_mut() {
                let (leaving, staying) = std::mem::take(line).into_iter().partition(&leaves);
                *line = staying;
                left.extend::<VecDeque<T>>(leaving);
            }
            lines.retain(|(_, line)| !line.is_empty());
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Priority::*, *};

    fn all<T>(queue: &mut Queue<T>) -> Vec<T> {
        std::iter::from_fn(|| queue.pop(|_| true)).collect()
    }

    #[test]
    fn groups_of_one_class_are_popped_in_rotation() {
        let mut queue = Queue::new();
        for name in ["a1", "a2", "a3"] {
            queue.push(Normal, 1, name);
        }
        queue.push(Normal, 8, "x");
        queue.push(Normal, 9, "y");
        queue.push(Normal, 2, "b1");
        queue.push(Normal, 1, "a4");
        assert_eq!(queue.extract(|name| *name == "a2" || *name == "y"), ["a2", "y"]);
        assert_eq!(all(&mut queue), ["a1", "x", "b1", "a3", "a4"]);
        assert!(queue.is_empty());
    }

    #[test]
    fn waiting_classes_are_popped_by_weight() {
        let mut queue = Queue::new();
        for i in 0..60 {
            Priority::ALL.into_iter().for_each(|class| queue.push(class, i, class));
        }
        let first: Vec<Priority> = (0..42).filter_map(|_| queue.pop(|_| true)).collect();
        assert_eq!(first[0], Interactive, "the most urgent goes first");
        let turns = |class| first.iter().filter(|c| **c == class).count();
        assert_eq!(Priority::ALL.map(turns), [32, 8, 2]);
        assert!(queue.pop(|class| class == Background) == Some(Background));
    }

    #[test]
    fn absent_class_saves_up_no_turns() {
        let mut queue = Queue::new();
        (0..1000).for_each(|i| queue.push(Background, i, Background));
        (0..500).for_each(|_| _ = queue.pop(|_| true));
        (0..100).for_each(|i| queue.push(Interactive, i, Interactive));
        let first: Vec<_> = (0..36).filter_map(|_| queue.pop(|_| true)).collect();
        assert!(first.iter().filter(|c| **c == Background).count() >= 2, "{first:?}");
    }

    /// Events of a queue: `Some` pushes, `None` pops.
    fn events() -> impl Strategy<Value = Vec<Option<(usize, u64)>>> {
        prop::collection::vec(prop::option::weighted(0.55, (0usize..3, 0u64..4)), 1..600)
    }

    proptest! {
        #[test]
        fn waiting_class_is_passed_over_no_more_than_its_weight_allows(events in events()) {
            let mut queue = Queue::new();
            let (mut waiting, mut passed) = ([0usize; 3], [[0usize; 3]; 3]);
            for event in events {
                if let Some((class, group)) = event {
                    queue.push(Priority::ALL[class], group, class);
                    waiting[class] += 1;
                    continue;
                }
                let total: usize = waiting.iter().sum();
                let Some(turn) = queue.pop(|_| true) else {
                    prop_assert_eq!(total, 0, "a waiting request is admitted");
                    continue;
                };
                waiting[turn] -= 1;
                passed[turn] = [0; 3];
                for class in (0..3).filter(|class| *class != turn) {
                    if waiting[class] == 0 {
                        passed[class] = [0; 3];
                        continue;
                    }
                    passed[class][turn] += 1;
                    let ratio = Priority::ALL[class].stride().div_ceil(Priority::ALL[turn].stride());
                    prop_assert!(passed[class][turn] <= ratio + 1, "{} passed {} by {:?}", turn, class, passed);
                }
            }
        }

        #[test]
        fn groups_of_any_length_are_served_equally(lengths in prop::collection::vec(1usize..20, 1..6)) {
            let mut queue = Queue::new();
            for (group, length) in lengths.iter().enumerate() {
                (0..*length).for_each(|_| queue.push(Normal, group as u64, group));
            }
            let mut served = vec![0; lengths.len()];
            for group in all(&mut queue) {
                served[group] += 1;
                let unfinished = served.iter().zip(&lengths).filter(|(s, l)| s < l).map(|(s, _)| *s);
                prop_assert!(served[group] <= unfinished.min().unwrap_or(usize::MAX).saturating_add(1));
            }
            prop_assert_eq!(served, lengths);
        }
    }
}
