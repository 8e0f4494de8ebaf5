//! `POST /v1/embeddings` and `/v1/rerank`, field by field.

use serde_json::{Value, json};

use crate::support::{
    client::{self, Reply},
    server::{CONTEXT, Setup, TestServer},
};

fn embed(server: &TestServer, body: &Value) -> Reply {
    client::post(server.address, "/v1/embeddings", body)
}

fn rerank(server: &TestServer, body: &Value) -> Reply {
    client::post(server.address, "/v1/rerank", body)
}

/// The vectors of an answer.
fn vectors(answer: &Value) -> Vec<Vec<f64>> {
    let data = answer["data"].as_array().unwrap().iter();
    let numbers =
        |entry: &Value| entry["embedding"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect();
    data.map(numbers).collect()
}

fn length(vector: &[f64]) -> f64 {
    vector.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The scripted engine's state of a token is 1 at its id modulo 8, and 0 elsewhere.
#[test]
fn embedding_has_openai_shape() {
    let server = Setup::default().says("x");
    let answer = embed(&server, &json!({ "input": "hhp", "model": "owl", "user": "u" })).json();
    assert_eq!(
        answer,
        json!({
            "object": "list",
            "data": [{ "object": "embedding", "index": 0, "embedding": [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0] }],
            "model": "owl",
            "usage": { "prompt_tokens": 3, "total_tokens": 3, "prompt_tokens_details": { "cached_tokens": 0 } },
        })
    );
}

#[test]
fn embedding_input_is_text_ids_or_a_list_of_either() {
    let server = Setup::default().says("x");
    for (input, count) in
        [(json!("ab"), 1), (json!(["ab", "c"]), 2), (json!([97, 98]), 1), (json!([[97, 98], [99]]), 2)]
    {
        let answer = embed(&server, &json!({ "input": input })).json();
        let vectors = vectors(&answer);
        assert_eq!(vectors.len(), count, "{input}");
        assert!((length(&vectors[0]) - 1.0).abs() < 1e-6 && vectors[0][1] == vectors[0][2], "{input}");
        assert_eq!(answer["data"][count - 1]["index"], count - 1);
    }
}

#[test]
fn base64_embedding_is_the_same_numbers() {
    use base64::{Engine, prelude::BASE64_STANDARD};
    let server = Setup::default().says("x");
    let body = |format| json!({ "input": ["abc", "d"], "encoding_format": format });
    let numbers = vectors(&embed(&server, &body("float")).json());
    let encoded = embed(&server, &body("base64")).json();
    for (index, numbers) in numbers.iter().enumerate() {
        let text = encoded["data"][index]["embedding"].as_str().unwrap();
        let bytes = BASE64_STANDARD.decode(text).unwrap();
        let decoded = bytes.chunks(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap())));
        assert_eq!(
            decoded.map(|x| x as f32).collect::<Vec<_>>(),
            numbers.iter().map(|x| *x as f32).collect::<Vec<_>>()
        );
    }
}

#[test]
fn dimensions_truncate_and_normalise_again() {
    let server = Setup::default().says("x");
    let answer = embed(&server, &json!({ "input": "hij", "dimensions": 2 })).json();
    let vectors = vectors(&answer);
    assert_eq!(vectors[0].len(), 2);
    assert!((length(&vectors[0]) - 1.0).abs() < 1e-6 && vectors[0][0] == vectors[0][1]);
}

#[test]
fn pooling_is_mean_by_default_and_last_on_request() {
    let server = Setup::default().says("x");
    let first = |pooling: Option<&str>| {
        vectors(&embed(&server, &json!({ "input": "pq", "pooling": pooling })).json())[0][..2].to_vec()
    };
    assert_eq!(first(Some("last")), [0.0, 1.0]);
    assert_eq!(first(None), first(Some("mean")));
    assert_eq!(first(None)[0], first(None)[1]);
}

#[test]
fn bad_embedding_request_is_400_that_names_the_field() {
    let server = Setup::default().says("x");
    let long = "a".repeat(CONTEXT);
    for (body, param) in [
        (json!({}), Value::Null),
        (json!({ "input": [] }), json!("input")),
        (json!({ "input": "" }), json!("input")),
        (json!({ "input": [["a"]] }), json!("input")),
        (json!({ "input": [1, -1] }), json!("input")),
        (json!({ "input": long }), json!("input")),
        (json!({ "input": vec!["a"; 2049] }), json!("input")),
        (json!({ "input": "a", "dimensions": 0 }), json!("dimensions")),
        (json!({ "input": "a", "dimensions": 9 }), json!("dimensions")),
        (json!({ "input": "a", "encoding_format": "int8" }), json!("encoding_format")),
        (json!({ "input": "a", "pooling": "cls" }), json!("pooling")),
        (json!({ "input": "a", "truncate_prompt_tokens": 3 }), json!("truncate_prompt_tokens")),
        (json!({ "input": "a", "priority": "urgent" }), json!("priority")),
        (json!({ "input": "a", "timeout": 0 }), json!("timeout")),
    ] {
        let reply = embed(&server, &body);
        let shown: String = body.to_string().chars().take(80).collect();
        assert_eq!(reply.status, 400, "{shown}: {}", reply.body);
        assert_eq!(reply.json()["error"]["param"], param, "{shown}");
    }
    let other = embed(&server, &json!({ "input": "a", "model": "gpt-4" }));
    assert_eq!((other.status, &other.json()["error"]["code"]), (404, &json!("model_not_found")));
}

#[test]
fn rerank_orders_documents_by_relevance() {
    let server = Setup::default().says("x");
    let body = json!({ "query": "hh", "documents": ["iii", { "text": "hi" }, "p", "i"], "top_n": 3 });
    let answer = rerank(&server, &body).json();
    assert!(answer["id"].as_str().unwrap().starts_with("rerank-"));
    let results = answer["results"].as_array().unwrap();
    let index: Vec<&Value> = results.iter().map(|result| &result["index"]).collect();
    // `h` and `p` have the same remainder; equal documents keep their order.
    assert_eq!(index, [&json!(2), &json!(1), &json!(0)]);
    assert_eq!(results[0]["relevance_score"], 1.0);
    assert_eq!(results[1]["document"], json!({ "text": "hi" }));
    assert!((results[1]["relevance_score"].as_f64().unwrap() - 0.5f64.sqrt()).abs() < 1e-6);
    assert_eq!(answer["usage"]["total_tokens"], 9);

    let without = json!({ "query": "h", "documents": ["i"], "return_documents": false });
    let answer = client::post(server.address, "/v2/rerank", &without).json();
    assert_eq!(answer["results"], json!([{ "index": 0, "relevance_score": 0.0 }]));
}

#[test]
fn bad_rerank_request_is_400_that_names_the_field() {
    let server = Setup::default().says("x");
    for (body, param) in [
        (json!({ "query": "a" }), Value::Null),
        (json!({ "query": "a", "documents": [] }), json!("documents")),
        (json!({ "query": "a", "documents": [7] }), json!("documents[0]")),
        (json!({ "query": "", "documents": ["a"] }), json!("query")),
        (json!({ "query": "a", "documents": ["a"], "top_n": 0 }), json!("top_n")),
        (json!({ "query": "a", "documents": ["a"], "max_tokens_per_doc": 9 }), json!("max_tokens_per_doc")),
        (json!({ "query": "a", "documents": [{ "text": "a" }], "rank_fields": ["x"] }), json!("rank_fields")),
    ] {
        let reply = rerank(&server, &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &param), "{body}: {}", reply.body);
    }
}

#[test]
fn embeddings_need_the_key_and_are_counted() {
    let server = Setup { api_key: Some("secret"), ..Setup::default() }.says("x");
    for path in ["/v1/embeddings", "/v1/rerank", "/v2/rerank"] {
        assert_eq!(client::post(server.address, path, &json!({ "input": "a" })).status, 401, "{path}");
    }
    let headers = "Content-Type: application/json\r\nAuthorization: Bearer secret\r\n";
    let post = |body: &Value| {
        client::request(server.address, "POST /v1/embeddings", headers, body.to_string().as_bytes())
    };
    assert_eq!(post(&json!({ "input": "a" })).status, 200);
    assert_eq!(post(&json!({ "input": [] })).status, 400);
    let metrics = client::request(server.address, "GET /metrics", headers, b"").body;
    for line in
        [r#"lanner_requests_total{outcome="answered"} 1"#, r#"lanner_requests_total{outcome="invalid"} 1"#]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

/// Texts of one batch do not change each other, nor does the prefix cache.
#[test]
fn embedding_by_merlin_is_the_same_alone_and_in_a_batch() {
    let server = Setup::default().merlin();
    let texts = ["The owl hunts at night.", "The owl", "What is 17 + 25?", "x"];
    for pooling in ["mean", "last"] {
        let vectors =
            |input: Value| vectors(&embed(&server, &json!({ "input": input, "pooling": pooling })).json());
        let alone: Vec<_> = texts.iter().flat_map(|text| vectors(json!(text))).collect();
        assert_eq!(vectors(json!(texts)), alone, "{pooling}");
        assert!(alone.iter().all(|vector| (length(vector) - 1.0).abs() < 1e-5));
    }
}
