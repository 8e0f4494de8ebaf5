//! generation_config.json: the end-of-sequence tokens and the sampling that a model suggests. A
//! value out of range is an error.

use serde_json::Value;

use crate::api::{
    Sampling, SamplingRange,
    error::{LoadError, Result},
    sampling::PARAMETERS,
};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GenerationConfig {
    pub eos_ids: Vec<u32>,
    /// `temperature` is 0 if the file says `do_sample: false`.
    pub sampling: Sampling,
}

impl GenerationConfig {
    /// Parses the contents of the file `name`; `None` if the model has no such file.
    ///
    /// # Errors
    /// One sentence that names the file and the key.
    pub(crate) fn of(name: &str, config: Option<&Value>) -> Result<GenerationConfig> {
        let defaults = Sampling { temperature: 1.0, ..Sampling::default() };
        let Some(config) = config else {
            return Ok(GenerationConfig { eos_ids: vec![], sampling: defaults });
        };
        let keys = ConfigKeys { name, config };
        if !config.is_object() {
            return Err(keys.error("it must be an object".into()));
        }
        let mut sampling = Sampling { top_k: keys.top_k()?, ..defaults };
        for parameter in PARAMETERS.iter().filter(|parameter| parameter.in_generation_config) {
            let value = (parameter.value)(&mut sampling);
            *value = keys.number(parameter.range, *value)?;
        }
        if !keys.samples()? {
            sampling.temperature = 0.0;
        }
        Ok(GenerationConfig { eos_ids: keys.token_ids()?, sampling })
    }
}

struct ConfigKeys<'a> {
    /// Name of the file.
    name: &'a str,
    config: &'a Value,
}

impl ConfigKeys<'_> {
    fn get(&self, key: &str) -> Option<&Value> {
        self.config.get(key).filter(|value| !value.is_null())
    }

    fn number(&self, range: SamplingRange, default: f32) -> Result<f32> {
        let Some(value) = self.get(range.name) else { return Ok(default) };
        let number = value.as_f64().and_then(|number| range.check(number).ok());
        number.ok_or_else(|| self.wrong(range.name, value, &format!("a number {}", range.must)))
    }

    /// Some files write -1 for all.
    fn top_k(&self) -> Result<usize> {
        let Some(value) = self.get("top_k") else { return Ok(0) };
        let whole = value.as_f64().filter(|k| (-1.0..=f64::from(u32::MAX)).contains(k) && k.fract() == 0.0);
        match whole {
            Some(k) => Ok(k.max(0.0) as usize),
            None => Err(self.wrong("top_k", value, "a whole number, 0 or -1 for all tokens")),
        }
    }

    fn samples(&self) -> Result<bool> {
        let Some(value) = self.get("do_sample") else { return Ok(true) };
        value.as_bool().ok_or_else(|| self.wrong("do_sample", value, "true or false"))
    }

    /// One token id or a list of them.
    fn token_ids(&self) -> Result<Vec<u32>> {
        let Some(value) = self.get("eos_token_id") else { return Ok(vec![]) };
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids: Option<Vec<u32>> = match value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            value => id(value).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.wrong("eos_token_id", value, "a token id or a list of them"))
    }

    fn wrong(&self, key: &str, value: &Value, must: &str) -> LoadError {
        // A list may be long.
        let value: String = value.to_string().chars().take(80).collect();
        self.error(format!("{key} is {value}; it must be {must}"))
    }

    fn error(&self, message: String) -> LoadError {
        LoadError::File { path: self.name.into(), message }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(config: Value) -> GenerationConfig {
        GenerationConfig::of("g.json", Some(&config)).expect("good")
    }

    #[test]
    fn generation_config_with_valid_values_is_parsed() {
        let none = GenerationConfig::of("g.json", None).expect("good");
        assert_eq!(none, read(json!({})));
        assert_eq!((none.eos_ids, none.sampling.temperature), (vec![], 1.0));
        let all = json!({
            "eos_token_id": [1, 2], "temperature": 0.6, "top_k": 20, "top_p": 1, "min_p": 0,
            "repetition_penalty": 1.05, "pad_token_id": "whatever",
        });
        let sampling =
            Sampling { temperature: 0.6, top_k: 20, repetition_penalty: 1.05, ..Sampling::default() };
        assert_eq!(read(all), GenerationConfig { eos_ids: vec![1, 2], sampling });
        let odd =
            json!({ "eos_token_id": 7, "do_sample": false, "temperature": null, "top_k": -1, "top_p": null });
        assert_eq!(read(odd), GenerationConfig { eos_ids: vec![7], sampling: Sampling::default() });
        assert_eq!(read(json!({ "top_k": 50.0, "eos_token_id": null })).sampling.top_k, 50);
    }

    #[test]
    fn generation_config_with_invalid_value_names_file_and_key() {
        let check = |key: &str, wrong: &[Value]| {
            for value in wrong {
                let config = json!({ key: value });
                let error = GenerationConfig::of("g.json", Some(&config)).expect_err("wrong").to_string();
                assert!(error.starts_with(&format!("g.json: {key} is {value}; it must be ")), "{error}");
            }
        };
        check("temperature", &[json!(-1), json!("1"), json!(1e300), json!(101), json!([1]), json!(true)]);
        check("top_p", &[json!(0), json!(-0.5), json!(1.5), json!("0.9")]);
        check("min_p", &[json!(-0.1), json!(2)]);
        check("repetition_penalty", &[json!(0), json!(-1.0), json!(1e-38), json!(1e38)]);
        check("top_k", &[json!(-2), json!(1.5), json!("50"), json!(1e300)]);
        check("do_sample", &[json!("false"), json!(0)]);
        check(
            "eos_token_id",
            &[json!(-1), json!("2"), json!([1, -1]), json!([[1]]), json!(1.5), json!(1u64 << 32)],
        );
        for config in [json!([]), json!("x"), json!(3)] {
            assert!(GenerationConfig::of("g.json", Some(&config)).is_err());
        }
    }
}
