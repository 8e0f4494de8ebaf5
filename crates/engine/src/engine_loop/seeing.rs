//! Runs the vision tower for sequences that have come to an image.

use mlx::Array;

use super::{delivery::End, fault, images::FeatureKey, recovery::failure, run::EngineLoop};
use crate::{api::Image, guard::guarded, models::Model};

impl EngineLoop {
    /// Gives sequences that have come to an image its features. The tower runs for one image at
    /// most, so that other sequences get their steps in between.
    pub(crate) fn see(&mut self) {
        let mut ran = false;
        let mut failed = vec![];
        for sequence in &mut self.running {
            let computed = sequence.progress.num_computed_tokens;
            let images = &sequence.request.images;
            sequence.images.release(images, computed);
            if !sequence.phase.is_running() {
                continue;
            }
            let Some(index) = sequence.images.next_missing(images, computed) else { continue };
            let image = &images[index];
            if image.span().start > computed {
                continue;
            }
            let key = FeatureKey::of(&sequence.request, image);
            let features = match self.features.get(key) {
                Some(features) => {
                    self.options.metrics.images_reused.add(1);
                    features
                }
                None if ran => continue,
                None => {
                    ran = true;
                    let model = &*self.model;
                    match guarded(|| features(model, image)) {
                        Ok(features) => {
                            self.options.metrics.images_computed.add(1);
                            self.features.insert(key, features.clone());
                            features
                        }
                        Err(message) => {
                            failed.push((sequence.id, message));
                            continue;
                        }
                    }
                }
            };
            sequence.images.set_features(index, features);
        }
        for (id, message) in failed {
            tracing::error!("the vision tower failed: {message}");
            if let Some(at) = self.running.iter().position(|s| s.id == id) {
                let sequence = self.running.remove(at);
                self.end(sequence, End::Failed(failure(message)));
            }
        }
    }
}

/// Runs the tower.
///
/// # Errors
/// Computing it failed.
fn features(model: &dyn Model, image: &Image) -> mlx::Result<Array> {
    fault::point("tower");
    let Some(tower) = model.tower() else { unreachable!("images are checked at admission") };
    let features = tower.forward(image);
    mlx::eval([&features])?;
    Ok(features)
}
