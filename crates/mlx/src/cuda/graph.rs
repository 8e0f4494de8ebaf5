//! Graphs of kernels that run one after another, kept to be launched again with other parameters.

#![allow(unsafe_code, reason = "calls to the driver")]

use std::collections::HashMap;

use super::{
    Result,
    driver::{Driver, GraphEdge, Graphs, Handle},
    kernel_call::Launch,
};
use crate::profile;

/// Fewer kernels than this are launched one by one.
const LEAST_KERNELS: usize = 24;
/// Numbers of kernels that graphs are kept for.
const MAX_SIZES: usize = 32;
/// Graphs of a size, launched in turns: steps write some arrays to two places in turns.
const TURNS: usize = 2;

/// Graphs by their number of kernels: all else of a node can change.
#[derive(Default)]
pub(super) struct GraphCache {
    sizes: HashMap<usize, Turns>,
    /// Counts launches.
    now: u64,
}

#[derive(Default)]
struct Turns {
    graphs: Vec<Graph>,
    /// Uses, and the last one's time.
    uses: usize,
    last: u64,
}

/// An executable graph, and the kernels in it as they are now.
struct Graph {
    handle: Handle,
    executable: Handle,
    nodes: Vec<Handle>,
    launches: Vec<Launch>,
    functions: Graphs,
}

impl GraphCache {
    /// Queues the kernels, as a graph if that many came before.
    pub(super) fn launch(
        &mut self,
        functions: &Graphs,
        driver: &Driver,
        stream: Handle,
        launches: Vec<Launch>,
    ) -> Result<()> {
        self.now += 1;
        let size = launches.len();
        let is_known = self.sizes.contains_key(&size);
        if size >= LEAST_KERNELS && !is_known && self.sizes.len() == MAX_SIZES {
            let oldest = self.sizes.iter().min_by_key(|(_, turns)| turns.last);
            if let Some(size) = oldest.map(|(size, _)| *size) {
                self.sizes.remove(&size);
            }
        }
        let mut turns = (size >= LEAST_KERNELS).then(|| self.sizes.entry(size).or_default());
        if let Some(turns) = &mut turns {
            (turns.uses, turns.last) = (turns.uses + 1, self.now);
        }
        let Some(turns) = turns.filter(|_| is_known) else {
            return launches.iter().try_for_each(|launch| launch.queue(driver, stream));
        };
        let turn = turns.uses % TURNS;
        match turns.graphs.get_mut(turn) {
            Some(graph) => graph.update(driver, launches)?,
            None => turns.graphs.push(Graph::new(functions, driver, launches)?),
        }
        let graph = &turns.graphs[turn.min(turns.graphs.len() - 1)];
        // SAFETY: the executable exists; the driver keeps it until it has run.
        let run = || unsafe { (functions.launch)(graph.executable, stream) };
        driver.check(profile::part("graph", run).0, "launch a graph")
    }
}

impl Graph {
    fn new(functions: &Graphs, driver: &Driver, launches: Vec<Launch>) -> Result<Graph> {
        let nodes = Vec::with_capacity(launches.len());
        let mut graph = Graph { handle: 0, executable: 0, nodes, launches, functions: *functions };
        // SAFETY: the functions write handles, which the graph owns from then on, and copy the
        // nodes' parameters.
        unsafe {
            driver.check((functions.create)(&mut graph.handle, 0), "make a graph")?;
            for launch in &graph.launches {
                let mut node = 0;
                let status = launch.as_node(|parameters| {
                    (functions.add_kernel)(&mut node, graph.handle, std::ptr::null(), 0, parameters)
                });
                driver.check(status, "add a kernel to a graph")?;
                graph.nodes.push(node);
            }
            let (from, to) = (&graph.nodes[..graph.nodes.len() - 1], &graph.nodes[1..]);
            let edges = vec![GraphEdge::DEPENDENT; from.len()];
            let status =
                (functions.add_edges)(graph.handle, from.as_ptr(), to.as_ptr(), edges.as_ptr(), from.len());
            driver.check(status, "connect the kernels of a graph")?;
            driver.check((functions.instantiate)(&mut graph.executable, graph.handle, 0), "make a graph")?;
        }
        Ok(graph)
    }

    /// Makes the graph one of these kernels, which are as many as its own.
    fn update(&mut self, driver: &Driver, launches: Vec<Launch>) -> Result<()> {
        for ((node, own), launch) in self.nodes.iter().zip(&mut self.launches).zip(launches) {
            if *own != launch {
                // SAFETY: the node is one of this graph; the driver copies the parameters now, and
                // a graph that is running keeps those it was launched with.
                let status = launch.as_node(|parameters| unsafe {
                    (self.functions.set_kernel)(self.executable, *node, parameters)
                });
                driver.check(status, "change a kernel of a graph")?;
                *own = launch;
            }
        }
        Ok(())
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nothing uses the handles from here on; the driver lets a running graph end.
        // A failed device fails the next operation anyway.
        unsafe {
            if self.executable != 0 {
                (self.functions.destroy_executable)(self.executable);
            }
            if self.handle != 0 {
                (self.functions.destroy)(self.handle);
            }
        }
    }
}
