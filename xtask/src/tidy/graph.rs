//! Cycles of a directed graph.

/// The strongly connected components of two nodes or more (Tarjan, 1972), each sorted. `edges[n]`
/// are the successors of node `n`.
pub(super) fn circles(edges: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let mut search =
        Search { edges, index: vec![None; edges.len()], low: vec![0; edges.len()], ..Search::default() };
    for node in 0..edges.len() {
        if search.index[node].is_none() {
            search.visit(node);
        }
    }
    search.found
}

#[derive(Default)]
struct Search<'a> {
    edges: &'a [Vec<usize>],
    next: usize,
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    stack: Vec<usize>,
    found: Vec<Vec<usize>>,
}

impl Search<'_> {
    /// Recursion depth is the longest path of imports: some hundred files at most.
    fn visit(&mut self, node: usize) {
        let own = self.next;
        self.next += 1;
        self.index[node] = Some(own);
        self.low[node] = own;
        self.stack.push(node);
        for &to in &self.edges[node] {
            match self.index[to] {
                None => {
                    self.visit(to);
                    self.low[node] = self.low[node].min(self.low[to]);
                }
                Some(index) if self.stack.contains(&to) => self.low[node] = self.low[node].min(index),
                Some(_) => {}
            }
        }
        if self.low[node] == own {
            let at = self.stack.iter().position(|on| *on == node).unwrap_or(0);
            let mut circle = self.stack.split_off(at);
            circle.sort_unstable();
            if circle.len() > 1 {
                self.found.push(circle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_circles_and_a_path_give_two_components() {
        let edges = [vec![1], vec![0, 2], vec![3], vec![4], vec![2], vec![0]];
        let mut found = circles(&edges);
        found.sort();
        assert_eq!(found, [vec![0, 1], vec![2, 3, 4]]);
    }
}
