//! Fetching images: what is refused, with a fake resolver and a server on this machine that plays
//! the public one.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
};

use super::*;

/// Addresses that are public and belong to others; nothing is sent there.
const PUBLIC: &str = "198.41.0.4";

/// A resolver whose hosts are `public.example` and such, and a network in which every public
/// address is a server on this machine.
#[derive(Debug)]
struct Fake {
    server: Option<SocketAddr>,
    /// Answers of the resolver, in order; the last is repeated.
    answers: Vec<Vec<IpAddr>>,
    asked: AtomicUsize,
    /// Addresses that connections went to.
    dialled: AtomicUsize,
}

impl Network for Fake {
    fn resolve(&self, host: &str) -> std::io::Result<Vec<IpAddr>> {
        if let Ok(address) = host.parse() {
            return Ok(vec![address]);
        }
        if host == "localhost" || host == "intern.example" {
            return Ok(vec![IpAddr::from([127, 0, 0, 1])]);
        }
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        Ok(self.answers.get(asked).or(self.answers.last()).cloned().unwrap_or_default())
    }

    fn dial(&self, address: SocketAddr) -> SocketAddr {
        assert!(address::is_public(address.ip()), "{address}");
        self.dialled.fetch_add(1, Ordering::Relaxed);
        self.server.unwrap_or(address)
    }
}

/// Later than the timeout of one image.
fn later() -> Instant {
    Instant::now() + 2 * TIMEOUT
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn fetcher(allowed: &[&str], server: Option<SocketAddr>, answers: &[&[&str]]) -> (ImageUrls, Arc<Fake>) {
    let answers = answers.iter().map(|texts| addresses(texts)).collect();
    let fake = Arc::new(Fake { server, answers, asked: AtomicUsize::new(0), dialled: AtomicUsize::new(0) });
    let allowed = allowed.iter().map(|host| host.parse().unwrap()).collect();
    (ImageUrls { allowed, timeout: TIMEOUT, network: fake.clone() }, fake)
}

/// Serves the answers, one for each connection, and returns the requests.
fn serve(answers: Vec<Vec<u8>>) -> (SocketAddr, thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serve_one = |(answer, stream): (Vec<u8>, std::io::Result<TcpStream>)| {
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let head: Vec<String> = lines.map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        // Fails if the client has seen enough.
        let _ = (&stream).write_all(&answer);
        head.join("\n")
    };
    (address, thread::spawn(move || answers.into_iter().zip(listener.incoming()).map(serve_one).collect()))
}

fn ok(body: &[u8]) -> Vec<u8> {
    [format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len()).as_bytes(), body].concat()
}

fn redirect(to: &str) -> Vec<u8> {
    format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n").into()
}

// Long: one line per address.
#[test]
fn special_addresses_are_not_public() {
    for text in [
        "0.0.0.0",
        "0.1.2.3",
        "10.0.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "127.0.0.1",
        "127.255.0.9",
        "168.63.129.16",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.0.1",
        "192.0.2.1",
        "192.88.99.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.19.255.255",
        "198.51.100.1",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::7f00:1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a00:1",
        "64:ff9b:1::1",
        "64:ff9b::1:0:7f00:1",
        "100::1",
        "fc00::1",
        "fd12:3456::1",
        "fe80::1",
        "fec0::1",
        "ff02::1",
        "2001::1",
        "2001:0:4137:9e76::1",
        "2001:10::1",
        "2001:db8::1",
        "2002:7f00:1::1",
        "2002:a00:1::",
        "3fff::1",
        "4000::1",
    ] {
        assert!(!address::is_public(text.parse().unwrap()), "{text}");
    }
    for text in [
        "1.1.1.1",
        PUBLIC,
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "168.63.129.17",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "223.255.255.255",
        "2606:4700::1111",
        "2a00:1450::1",
        "2001:200::1",
        "2001:db9::1",
        "::ffff:1.1.1.1",
        "64:ff9b::101:101",
    ] {
        assert!(address::is_public(text.parse().unwrap()), "{text}");
    }
}

#[test]
fn host_with_any_address_that_is_not_public_is_refused() {
    for answer in [
        &["127.0.0.1"][..],
        &[PUBLIC, "10.0.0.1"],
        &["::1"],
        &["::ffff:192.168.0.1"],
        &["64:ff9b::a9fe:a9fe"],
        &["2606:4700::1111", "fd00::1"],
    ] {
        let (urls, fake) = fetcher(&["*"], None, &[answer]);
        let error = urls.fetch("https://public.example/a.png", later()).unwrap_err();
        assert_eq!(error, ImageUrlError::NotPublic("public.example".into()), "{answer:?}");
        assert_eq!(fake.dialled.load(Ordering::Relaxed), 0, "{answer:?}");
    }
    let (urls, _) = fetcher(&["*"], None, &[&[]]);
    let error = urls.fetch("https://public.example/a.png", later()).unwrap_err();
    assert_eq!(error, ImageUrlError::NotFound("public.example".into()));
}

#[test]
fn address_in_a_url_is_checked_too() {
    for url in [
        "https://127.0.0.1/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://169.254.169.254/latest",
        "https://localhost/",
        "https://LOCALHOST./",
    ] {
        let (urls, _) = fetcher(&["*"], None, &[]);
        assert!(matches!(urls.fetch(url, later()), Err(ImageUrlError::NotPublic(_))), "{url}");
    }
    // Notations that only the system's resolver knows.
    let urls = ImageUrls::new(vec!["*".parse().unwrap()]);
    for url in ["https://2130706433/", "https://0x7f000001/", "https://017700000001/", "https://127.1/"] {
        let error = urls.fetch(url, later()).unwrap_err();
        assert!(matches!(error, ImageUrlError::NotPublic(_) | ImageUrlError::NotFound(_)), "{url}: {error}");
    }
}

#[test]
fn url_of_a_host_that_is_not_listed_is_refused() {
    let (urls, fake) = fetcher(&["a.example", "*.b.example", "http://c.example:8080"], None, &[&[PUBLIC]]);
    for url in [
        "https://public.example/",
        "https://a.example.evil/",
        "https://xa.example/",
        "https://b.example/",
        "https://xb.example/",
        "http://a.example/",
        "https://a.example:8443/",
        "https://c.example/",
        "http://c.example/",
    ] {
        assert!(matches!(urls.fetch(url, later()), Err(ImageUrlError::NotAllowed(_))), "{url}");
    }
    for url in [
        "file:///etc/passwd",
        "ftp://a.example/",
        "https://user:pass@a.example/",
        "https://a.example@evil/",
        "https:///x",
        "https://",
        "//a.example/",
        "https://a.example:x/",
        "https://a\u{e9}.example/ b",
    ] {
        assert!(matches!(urls.fetch(url, later()), Err(ImageUrlError::BadUrl(_))), "{url}");
    }
    assert_eq!(fake.dialled.load(Ordering::Relaxed), 0);
    let allows =
        |host: &str, url: &str| host.parse::<AllowedHost>().unwrap().allows(&Target::parse(url).unwrap());
    assert!(allows("a.example", "https://A.Example./x") && allows("*.b.example", "https://x.y.b.example/"));
    assert!(allows("http://c.example:8080", "http://c.example:8080/") && allows("*", "https://[2606::1]/"));
    for text in ["", "a b", "ftp://a", "a:b", "*.", "a/b", "http://"] {
        assert!(text.parse::<AllowedHost>().is_err(), "{text}");
    }
}

#[test]
fn image_is_fetched_without_credentials_and_cookies() {
    let (server, requests) = serve(vec![redirect("/b.png?x"), ok(b"pixels")]);
    let (urls, fake) = fetcher(&["http://public.example"], Some(server), &[&[PUBLIC]]);
    assert_eq!(urls.fetch("http://public.example/a.png", later()).unwrap(), b"pixels");
    assert_eq!(fake.dialled.load(Ordering::Relaxed), 2);
    let requests = requests.join().unwrap();
    assert!(requests[0].starts_with("GET /a.png ") && requests[1].starts_with("GET /b.png?x "));
    for request in requests.iter().map(|request| request.to_lowercase()) {
        assert!(request.contains("host: public.example"), "{request}");
        assert!(!request.contains("cookie") && !request.contains("authorization"), "{request}");
    }
}

#[test]
fn redirects_are_checked_and_counted() {
    for (to, expected) in [
        ("http://127.0.0.1/", ImageUrlError::NotPublic("127.0.0.1".into())),
        ("http://intern.example/", ImageUrlError::NotPublic("intern.example".into())),
        ("http://other.test/", ImageUrlError::NotAllowed("other.test".into())),
        ("file:///etc/passwd", ImageUrlError::BadUrl("it must begin with https://")),
        ("", ImageUrlError::Redirects),
    ] {
        let (server, requests) = serve(vec![redirect(to)]);
        let allowed = ["http://public.example", "http://127.0.0.1", "http://intern.example"];
        let (urls, _) = fetcher(&allowed, Some(server), &[&[PUBLIC]]);
        assert_eq!(urls.fetch("http://public.example/", later()), Err(expected), "{to}");
        assert_eq!(requests.join().unwrap().len(), 1);
    }
    let (server, requests) = serve(vec![redirect("/again"); MAX_REDIRECTS + 1]);
    let (urls, _) = fetcher(&["http://public.example"], Some(server), &[&[PUBLIC]]);
    assert_eq!(urls.fetch("http://public.example/", later()), Err(ImageUrlError::Redirects));
    assert_eq!(requests.join().unwrap().len(), MAX_REDIRECTS + 1);
}

#[test]
fn resolver_that_changes_its_answer_does_not_move_the_connection() {
    // The first answer is checked and used; a second question would be answered with loopback.
    let (server, _requests) = serve(vec![ok(b"pixels")]);
    let (urls, fake) = fetcher(&["http://public.example"], Some(server), &[&[PUBLIC], &["127.0.0.1"]]);
    assert_eq!(urls.fetch("http://public.example/", later()).unwrap(), b"pixels");
    assert_eq!(fake.asked.load(Ordering::Relaxed), 1);
    // After a redirect the host is resolved and checked again.
    let (server, requests) = serve(vec![redirect("/b")]);
    let (urls, _) = fetcher(&["http://public.example"], Some(server), &[&[PUBLIC], &["127.0.0.1"]]);
    let error = urls.fetch("http://public.example/", later()).unwrap_err();
    assert_eq!(error, ImageUrlError::NotPublic("public.example".into()));
    assert_eq!(requests.join().unwrap().len(), 1);
}

#[test]
fn answers_that_are_no_image_of_an_allowed_size_are_refused() {
    let limit = LIMITS.max_file_bytes;
    let declared = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", limit + 1).into_bytes();
    let endless = [&b"HTTP/1.1 200 OK\r\n\r\n"[..], &vec![b'x'; limit as usize + 4096]].concat();
    let short = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc".to_vec();
    let denied = b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n".to_vec();
    let status = ImageUrlError::Status { host: "public.example".into(), status: 403 };
    for (answer, expected) in [
        (declared, Some(ImageUrlError::TooLarge(limit))),
        (endless, Some(ImageUrlError::TooLarge(limit))),
        (denied, Some(status)),
        (short, None),
        (b"not http".to_vec(), None),
    ] {
        let (server, _requests) = serve(vec![answer]);
        let (urls, _) = fetcher(&["http://public.example"], Some(server), &[&[PUBLIC]]);
        let error = urls.fetch("http://public.example/", later()).unwrap_err();
        match expected {
            Some(expected) => assert_eq!(error, expected),
            None => assert!(error == ImageUrlError::Unreachable("public.example".into()), "{error}"),
        }
    }
}

#[test]
fn host_that_does_not_answer_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (urls, _) = fetcher(&["http://public.example"], listener.local_addr().ok(), &[&[PUBLIC]]);
    let urls = ImageUrls { timeout: Duration::from_millis(300), ..urls };
    assert_eq!(urls.fetch("http://public.example/", later()), Err(ImageUrlError::TimedOut));
}

#[test]
fn fetching_ends_at_the_latest_time_of_the_request() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (urls, _) = fetcher(&["http://public.example"], listener.local_addr().ok(), &[&[PUBLIC]]);
    let start = Instant::now();
    let found = urls.fetch("http://public.example/", start + Duration::from_millis(300));
    assert_eq!(found, Err(ImageUrlError::TimedOut));
    assert!(start.elapsed() < TIMEOUT / 2, "{:?}", start.elapsed());
}
