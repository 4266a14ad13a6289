/* Connections of the host communicator against peers that are no rank of the job: wrong, repeated and reflected proofs,
 * silent connections by the thousand, second connections, other users; and what such a peer can see.  The addresses on
 * which ranks listen. */
#include "comm_ranks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "comm/host/monitor_impl.h"
#include "io/hash.h"

static struct vfm_hjob *job_of(struct vfm_comm *w)
{
	return ((struct vfm_hcomm *)w)->job;
}

/* ---- a peer that speaks the handshake step by step ---- */

static int dial(struct vfm_hjob *j, int to)
{
	int fd = vfm_net_dial(j, to, 0);

	CHECK(fd >= 0 && vfm_net_dialed(fd, 5000) == 0);
	return fd;
}

static struct vfm_handshake_hello hello_for(struct vfm_hjob *j, int to, uint32_t kind, uint64_t group)
{
	struct vfm_handshake_hello h = {
		.magic = VFM_HELLO_MAGIC, .kind = kind, .from = j->rank, .to = to, .group = group};

	CHECK(getrandom(h.nonce, sizeof(h.nonce), 0) == sizeof(h.nonce));
	return h;
}

static void say(int fd, const void *p, size_t n)
{
	CHECK(send(fd, p, n, MSG_NOSIGNAL) == (ssize_t)n);
}

/* Returns the bytes that came until n have come, the peer closed, or 5 s have passed (-1). */
static ssize_t hear(int fd, void *p, size_t n)
{
	size_t have = 0;

	for (double until = vfm_now() + 5; have < n && vfm_now() < until;) {
		struct pollfd f = {.fd = fd, .events = POLLIN};
		ssize_t k;

		poll(&f, 1, 100);
		k = recv(fd, (char *)p + have, n - have, MSG_DONTWAIT);
		if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
			return (ssize_t)have;
		have += k > 0 ? (size_t)k : 0;
	}
	return have == n ? (ssize_t)have : -1;
}

/* Closes fd; returns whether the peer had closed it without another byte. */
static bool was_closed(int fd)
{
	char x;
	bool yes = hear(fd, &x, 1) == 0;

	close(fd);
	return yes;
}

enum answer { CLOSED, PROVED, OTHER };

/* Sends a hello and the client's proof with this key; returns whether the server answered with its own. */
static enum answer prove(int fd, const struct vfm_handshake_hello *h, const uint8_t *key, uint8_t proof[VFM_HMAC_BYTES])
{
	uint8_t challenge[VFM_NONCE], want[VFM_HMAC_BYTES], got[VFM_HMAC_BYTES];
	ssize_t n;

	say(fd, h, sizeof(*h));
	CHECK(hear(fd, challenge, sizeof(challenge)) == sizeof(challenge));
	vfm_make_proof(key, false, h, challenge, proof);
	say(fd, proof, VFM_HMAC_BYTES);
	vfm_make_proof(key, true, h, challenge, want);
	n = hear(fd, got, sizeof(got));
	return n == 0 ? CLOSED : n == sizeof(got) && !memcmp(got, want, sizeof(got)) ? PROVED : OTHER;
}

static enum answer connects(struct vfm_hjob *j, int to, uint32_t kind, uint64_t group, const uint8_t *key)
{
	struct vfm_handshake_hello h = hello_for(j, to, kind, group);
	uint8_t proof[VFM_HMAC_BYTES];
	int fd = dial(j, to);
	enum answer a = prove(fd, &h, key, proof);

	close(fd);
	return a;
}

/* ---- proofs ---- */

static void try_wrong_proofs(struct vfm_hjob *j, int to)
{
	struct vfm_handshake_hello h = hello_for(j, to, VFM_HELLO_DATA, 1), other;
	uint8_t challenge[VFM_NONCE], proof[VFM_HMAC_BYTES], key[VFM_HMAC_BYTES], name[VFM_SECRET] = {0};
	char text[VFM_SOCKET_NAME + 1];
	int fd;

	memcpy(key, j->key, sizeof(key));
	key[31] ^= 1;
	CHECK(connects(j, to, VFM_HELLO_DATA, 1, key) == CLOSED); /* a key that differs in one bit */
	vfm_derive_name(vfm_endpoint_of(j, 0, &err)->secret, text);
	memcpy(name, text + 4, sizeof(name));
	vfm_derive_key(name, "vfm handshake", key);
	CHECK(connects(j, to, VFM_HELLO_DATA, 1, key) == CLOSED); /* a key from what is public */
	for (int k = 0; k < 4; k++) {                             /* a proof of another hello */
		fd = dial(j, to);
		say(fd, &h, sizeof(h));
		CHECK(hear(fd, challenge, sizeof(challenge)) == sizeof(challenge));
		other = h;
		other.group += k == 0;
		other.kind += k == 1;
		other.from += k == 2;
		other.nonce[0] ^= k == 3;
		vfm_make_proof(j->key, false, &other, challenge, proof);
		say(fd, proof, sizeof(proof));
		CHECK(was_closed(fd));
	}
	fd = dial(j, to); /* the server's proof, sent back */
	say(fd, &h, sizeof(h));
	CHECK(hear(fd, challenge, sizeof(challenge)) == sizeof(challenge));
	vfm_make_proof(j->key, true, &h, challenge, proof);
	say(fd, proof, sizeof(proof));
	CHECK(was_closed(fd));
}

/* Repeats a recorded handshake once its group is freed, so that only the challenge differs. */
static void try_repeated_proof(struct vfm_comm *w)
{
	struct vfm_hjob *j = job_of(w);
	uint8_t challenge[VFM_NONCE], proof[VFM_HMAC_BYTES];
	struct vfm_handshake_hello h;
	struct vfm_comm *c;
	int fd;

	MUST(vfm_comm_split(w, j->node_of[rank], 0, "node", &c, &err));
	if (rank == 1) {
		h = hello_for(j, 0, VFM_HELLO_DATA, ((struct vfm_hcomm *)c)->id);
		fd = dial(j, 0);
		CHECK(prove(fd, &h, j->key, proof) == PROVED);
		close(fd);
		CHECK(connects(j, 0, VFM_HELLO_DATA, h.group, j->key) == CLOSED);
	}
	MUST(vfm_barrier(w, NULL, &err));
	vfm_comm_free(c);
	MUST(vfm_barrier(w, NULL, &err));
	if (rank == 1) {
		fd = dial(j, 0);
		say(fd, &h, sizeof(h));
		CHECK(hear(fd, challenge, sizeof(challenge)) == sizeof(challenge));
		say(fd, proof, sizeof(proof));
		CHECK(was_closed(fd));
		CHECK(connects(j, 0, VFM_HELLO_DATA, h.group, j->key) == PROVED);
	}
}

static void try_malformed_hellos(struct vfm_hjob *j, int to)
{
	struct vfm_handshake_hello h = hello_for(j, to, VFM_HELLO_DATA, 4712), bad;
	uint8_t challenge[VFM_NONCE], proof[VFM_HMAC_BYTES], got[VFM_HMAC_BYTES];
	int fd;

	for (int k = 0; k < 6; k++) { /* refused before a challenge */
		bad = h;
		bad.magic += k == 0;
		bad.to = k == 1 ? j->rank : k == 2 ? -1 : bad.to;
		bad.from = k == 3 ? to : k == 4 ? j->size : k == 5 ? -1 : bad.from;
		fd = dial(j, to);
		say(fd, &bad, sizeof(bad));
		CHECK(was_closed(fd));
	}
	CHECK(connects(j, to, 9, 1, j->key) == CLOSED); /* an unknown kind, with a good proof */
	CHECK(connects(j, to, 0, 1, j->key) == CLOSED);
	fd = dial(j, to); /* the half of a hello */
	say(fd, &h, sizeof(h) / 2);
	shutdown(fd, SHUT_WR);
	CHECK(was_closed(fd));
	fd = dial(j, to); /* a good one, byte by byte */
	for (size_t i = 0; i < sizeof(h); i++) {
		say(fd, (char *)&h + i, 1);
		usleep(200);
	}
	CHECK(hear(fd, challenge, sizeof(challenge)) == sizeof(challenge));
	vfm_make_proof(j->key, false, &h, challenge, proof);
	for (size_t i = 0; i < sizeof(proof); i++)
		say(fd, proof + i, 1);
	CHECK(hear(fd, got, sizeof(got)) == sizeof(got));
	close(fd);
}

/* The rank has these connections already. */
static void try_second_connections(struct vfm_hjob *j, int to)
{
	CHECK(connects(j, to, VFM_HELLO_MONITOR, 0, j->key) == CLOSED);
	CHECK(connects(j, to, VFM_HELLO_ARENA, 0, j->key) == CLOSED);
	CHECK(connects(j, to, VFM_HELLO_DATA, 4713, j->key) == PROVED);
	CHECK(connects(j, to, VFM_HELLO_DATA, 4713, j->key) == CLOSED);
}

static void attack_proofs(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	struct vfm_hjob *j = job_of(w);
	int silent = -1;

	everything(w, 0);
	if (rank != 0) { /* 1: by the local socket; 2: by TCP */
		silent = dial(j, 0);
		try_wrong_proofs(j, 0);
		try_malformed_hellos(j, 0);
		try_second_connections(j, 0);
	}
	try_repeated_proof(w);
	for (int64_t round = 1; round < 4; round++)
		everything(w, round);
	if (rank != 0) { /* closed after 10 s, which began before the calls above */
		char x;
		struct pollfd f = {.fd = silent, .events = POLLIN};

		CHECK(poll(&f, 1, 15000) == 1 && recv(silent, &x, 1, 0) == 0);
		close(silent);
	}
	everything(w, 4);
	leave(w);
}

static void proofs(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 3, .per_node = 2}, attack_proofs);
}

/* ---- a client does not accept a server that is no rank ---- */

struct client {
	struct vfm_hjob *j;
	int fd;
	bool accepted;
};

static void *run_client(void *arg)
{
	struct client *c = arg;

	c->accepted = vfm_handshake_connect(c->j, c->fd, 0, VFM_HELLO_DATA, 7, vfm_now() + 5);
	return NULL;
}

/* how: 'g' a good server; 'r' it sends the client's proof back; 'w' it has another key; 'e' it closes; 'c' it uses the
 * client's nonce as its own and sends the proof back */
static bool client_accepts(struct vfm_hjob *j, char how)
{
	uint8_t challenge[VFM_NONCE] = {5}, proof[VFM_HMAC_BYTES], key[VFM_HMAC_BYTES];
	struct vfm_handshake_hello h;
	struct client c = {.j = j};
	pthread_t t;
	int sv[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	c.fd = sv[0];
	pthread_create(&t, NULL, run_client, &c);
	assert_int_equal(hear(sv[1], &h, sizeof(h)), sizeof(h));
	if (how == 'c')
		memcpy(challenge, h.nonce, sizeof(challenge));
	assert_int_equal(send(sv[1], challenge, sizeof(challenge), 0), sizeof(challenge));
	assert_int_equal(hear(sv[1], proof, sizeof(proof)), sizeof(proof));
	memcpy(key, j->key, sizeof(key));
	key[0] ^= how == 'w';
	if (how == 'g' || how == 'w')
		vfm_make_proof(key, true, &h, challenge, proof);
	if (how != 'e')
		assert_int_equal(send(sv[1], proof, sizeof(proof), 0), sizeof(proof));
	close(sv[1]);
	pthread_join(t, NULL);
	close(sv[0]);
	return c.accepted;
}

static void false_servers(void **state)
{
	struct vfm_hjob j = {.rank = 1, .size = 2, .timeout = 5};

	(void)state;
	assert_int_equal(getrandom(j.key, sizeof(j.key), 0), sizeof(j.key));
	assert_true(client_accepts(&j, 'g'));
	assert_false(client_accepts(&j, 'r'));
	assert_false(client_accepts(&j, 'c'));
	assert_false(client_accepts(&j, 'w'));
	assert_false(client_accepts(&j, 'e'));
}

/* ---- what others can see ---- */

static bool contains(const void *text, size_t n, const uint8_t *secret)
{
	char hex[2 * VFM_SECRET + 1];

	for (int i = 0; i < VFM_SECRET; i++)
		sprintf(hex + 2 * i, "%02x", secret[i]);
	/* a quarter of it is too much already */
	return memmem(text, n, hex, VFM_SECRET / 2) || memmem(text, n, secret, VFM_SECRET / 4);
}

static bool reveals(struct vfm_hjob *j, const void *text, size_t n)
{
	for (int r = 0; r < j->size; r++)
		if (contains(text, n, vfm_endpoint_of(j, r, &err)->secret))
			return true;
	return contains(text, n, j->key);
}

/* Relays a handshake with rank 0 and keeps what passes. */
static size_t overhear(struct vfm_hjob *j, char *heard, size_t most)
{
	struct client c = {.j = j};
	pthread_t t;
	int sv[2], to = dial(j, 0);
	size_t n = 0;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sv) == 0);
	c.fd = sv[0];
	pthread_create(&t, NULL, run_client, &c);
	while (n < sizeof(struct vfm_handshake_hello) + VFM_NONCE + 2 * VFM_HMAC_BYTES) {
		struct pollfd p[2] = {{.fd = sv[1], .events = POLLIN}, {.fd = to, .events = POLLIN}};

		CHECK(poll(p, 2, 5000) > 0);
		for (int i = 0; i < 2; i++)
			if (p[i].revents) {
				ssize_t k = recv(p[i].fd, heard + n, most - n, 0);

				CHECK(k > 0);
				say(p[1 - i].fd, heard + n, (size_t)k);
				n += (size_t)k;
			}
	}
	pthread_join(t, NULL);
	CHECK(c.accepted);
	close(sv[0]);
	close(sv[1]);
	close(to);
	return n;
}

static void look(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	struct vfm_hjob *j = job_of(w);
	char name[VFM_SOCKET_NAME + 1], heard[1024], *text;
	size_t n;

	MUST(vfm_read_file("/proc/net/unix", 1 << 26, &text, &n, &err));
	vfm_derive_name(vfm_endpoint_of(j, rank, &err)->secret, name);
	CHECK(strlen(name) == VFM_SOCKET_NAME && memmem(text, n, name, strlen(name)));
	CHECK(!reveals(j, text, n));
	free(text);
	if (rank) {
		n = overhear(j, heard, sizeof(heard));
		CHECK(!reveals(j, heard, n));
		CHECK(!memmem(heard, n, &j->world_id, 8));
	}
	MUST(vfm_barrier(w, NULL, &err));
	leave(w);
}

static void secrecy(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 2}, look);
	all_well(&(struct setup){.n = 2, .per_node = 1}, look);
}

/* ---- many silent connections ---- */

static int open_descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static pid_t flood(struct vfm_hjob *j, int to, int n)
{
	pid_t pid = fork();
	int fd, at = 0;

	if (pid != 0)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (; at < n; at++) {
		fd = vfm_net_dial(j, to, 0);
		if (fd >= 0)
			vfm_net_dialed(fd, 1000);
		sh->word[0] = at + 1;
	}
	for (;;)
		pause();
}

/* Rank 1 has 3,000 silent connections to rank 2 and opens more, while ranks 0 and 1 connect to rank 2.  Silent ones
 * that stayed would block them for 10 s. */
static void crowd(const struct setup *s)
{
	struct vfm_comm *w = join(s), *c;
	struct rlimit lim = {.rlim_cur = 8000, .rlim_max = 8000};
	double t;
	pid_t pid = 0;
	int most = 0;

	if (rank == 1) {
		setrlimit(RLIMIT_NOFILE, &lim);
		pid = flood(job_of(w), 2, 7500);
		for (double until = vfm_now() + 20; sh->word[0] < 3000 && vfm_now() < until;)
			usleep(1000);
		CHECK(sh->word[0] >= 3000);
	}
	MUST(vfm_barrier(w, NULL, &err));
	t = vfm_now();
	for (int64_t round = 0; round < 5; round++) {
		MUST(vfm_comm_split(w, 0, 0, "crowd", &c, &err));
		everything(c, round);
		vfm_comm_free(c);
		if (rank == 2)
			most = open_descriptors() > most ? open_descriptors() : most;
	}
	t = vfm_now() - t;
	if (rank == 2)
		print_message("%d connections later: five groups in %.2f s, %d descriptors\n", sh->word[0], t, most);
	CHECK(t < 6 && most < 400);
	if (pid > 0) {
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
	leave(w);
}

/* Rank 2 has no descriptors to spare: half-open connections give way. */
static void scarce(const struct setup *s)
{
	struct vfm_comm *w = join(s), *c;
	struct rlimit lim = {.rlim_cur = 100, .rlim_max = 100};
	int fd[200];
	double t;

	if (rank == 2)
		setrlimit(RLIMIT_NOFILE, &lim);
	MUST(vfm_barrier(w, NULL, &err));
	for (int i = 0; rank == 1 && i < 200; i++)
		fd[i] = dial(job_of(w), 2);
	MUST(vfm_barrier(w, NULL, &err));
	t = vfm_now();
	MUST(vfm_comm_split(w, 0, 0, "scarce", &c, &err));
	everything(c, 1);
	CHECK(vfm_now() - t < 6);
	vfm_comm_free(c);
	for (int i = 0; rank == 1 && i < 200; i++)
		close(fd[i]);
	leave(w);
}

static void silent(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 3, .per_node = 1}, crowd);
	all_well(&(struct setup){.n = 3, .per_node = 1}, scarce);
}

/* ---- other users ---- */

enum { NOBODY = 65534 };

static void other_user(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	struct vfm_hjob *j = job_of(w);
	pid_t pid;
	int st;

	MUST(vfm_barrier(w, NULL, &err));
	pid = rank == 1 ? fork() : -1;
	if (pid == 0) {
		struct vfm_handshake_hello h = hello_for(j, 0, VFM_HELLO_DATA, 1);
		int fd;

		CHECK(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
		fd = socket(AF_UNIX, SOCK_STREAM, 0);
		struct sockaddr_un a = {.sun_family = AF_UNIX};
		vfm_derive_name(vfm_endpoint_of(j, 0, &err)->secret, a.sun_path + 1);
		CHECK(connect(fd, (struct sockaddr *)&a,
			      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + VFM_SOCKET_NAME)) == 0);
		/* it has the key, and is refused before it can use it */
		if (send(fd, &h, sizeof(h), MSG_NOSIGNAL) < 0)
			_exit(0);
		CHECK(was_closed(fd));
		_exit(0);
	}
	if (pid > 0)
		CHECK(waitpid(pid, &st, 0) == pid && st == 0);
	everything(w, 1);
	leave(w);
}

/* A process of another user listens under the name of a rank that has ended. */
static void other_listener(void)
{
	int nodes[2] = {0, 0}, ready[2], fd;
	struct vfm_endpoint e[2] = {{.secret = {1}}, {.secret = {2}}}, *_Atomic known[2] = {&e[0], &e[1]};
	struct vfm_hjob j = {.rank = 1, .size = 2, .node_of = nodes, .endpoint = known};
	char x = 0;
	pid_t pid;

	assert_int_equal(getrandom(e[0].secret, VFM_SECRET, 0), VFM_SECRET);
	for (int user = 0; user <= NOBODY; user += NOBODY) {
		assert_int_equal(pipe(ready), 0);
		pid = fork();
		if (pid == 0) {
			struct sockaddr_un a = {.sun_family = AF_UNIX};

			alarm(60);
			fd = socket(AF_UNIX, SOCK_STREAM, 0);
			vfm_derive_name(e[0].secret, a.sun_path + 1);
			if (setuid((uid_t)user) ||
				bind(fd, (struct sockaddr *)&a,
					(socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + VFM_SOCKET_NAME)) ||
				listen(fd, 5) || write(ready[1], &x, 1) != 1)
				_exit(1);
			for (;;)
				pause();
		}
		assert_int_equal(read(ready[0], &x, 1), 1);
		fd = vfm_net_dial(&j, 0, 0);
		if (user == 0)
			assert_true(fd >= 0);
		else
			assert_true(fd < 0 && errno == ECONNREFUSED);
		if (fd >= 0)
			close(fd);
		close(ready[0]);
		close(ready[1]);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
	}
}

static void users(void **state)
{
	(void)state;
	if (geteuid() != 0) {
		fprintf(stderr, "SKIPPED: connections of other users need root\n");
		skip();
	}
	all_well(&(struct setup){.n = 2}, other_user);
	other_listener();
}

/* ---- the addresses on which ranks listen ---- */

static void listen_where(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	struct vfm_hjob *j = job_of(w);
	const struct vfm_endpoint *me = vfm_endpoint_of(j, rank, &err);

	CHECK(j->n_listen == 1 + me->n_addr && (me->n_addr > 0) == (s->per_node > 0));
	CHECK(s->word <= 0 || me->n_addr == s->word);
	for (int k = 0; k < me->n_addr; k++) {
		struct sockaddr_in6 a;
		struct sockaddr_in b;
		socklen_t len = sizeof(a);

		CHECK(getsockname(j->listen[1 + k], (struct sockaddr *)&a, &len) == 0);
		memcpy(&b, &a, sizeof(b));
		CHECK(a.sin6_family == me->addr[k].any.sa_family);
		if (a.sin6_family == AF_INET)
			CHECK(!memcmp(&b.sin_addr, &me->addr[k].v4.sin_addr, 4) &&
				b.sin_addr.s_addr != htonl(INADDR_ANY) && b.sin_port == me->addr[k].v4.sin_port);
		else
			CHECK(!memcmp(&a.sin6_addr, &me->addr[k].v6.sin6_addr, 16) &&
				!IN6_IS_ADDR_UNSPECIFIED(&a.sin6_addr) && a.sin6_port == me->addr[k].v6.sin6_port);
	}
	for (int k = 0; rank == 1 && k < vfm_endpoint_of(j, 0, &err)->n_addr; k++) { /* each of them answers */
		int fd = vfm_net_dial(j, 0, k);

		CHECK(fd >= 0 && vfm_net_dialed(fd, 3000) == 0);
		close(fd);
	}
	everything(w, 2);
	leave(w);
}

/* Runs the ranks in a network namespace that `commands` set up. */
static void in_net(const char *commands, const char *ifname, int addresses)
{
	char line[600];
	pid_t pid = fork();
	int st;

	if (pid == 0) {
		snprintf(line, sizeof(line), "set -e; ip link set lo up; %s", commands);
		if (unshare(CLONE_NEWNET) != 0 || system(line) != 0)
			_exit(99);
		if (ifname)
			setenv("VFM_COMM_IFNAME", ifname, 1);
		all_well(&(struct setup){.n = 3, .per_node = 1, .word = addresses}, listen_where);
		_exit(0);
	}
	waitpid(pid, &st, 0);
	if (st)
		fail_msg("'%s' ended with %#x", commands, st);
}

#define PAIR          "ip link add eth7 type veth peer name eth8; ip link set eth7 up; ip link set eth8 up; "
#define V4(dev, addr) "ip addr add " addr "/24 dev " dev "; "
#define V6(dev, addr) "ip addr add " addr "/64 dev " dev " nodad; "

static void addresses(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 2}, listen_where);
	all_well(&(struct setup){.n = 2, .per_node = 1}, listen_where);
	if (geteuid() != 0 || system("ip link show lo >/dev/null 2>&1") != 0) {
		fprintf(stderr, "SKIPPED: network namespaces need root and ip(8)\n");
		skip();
	}
	in_net("true", NULL, 1); /* 127.0.0.1 alone */
	in_net(PAIR V4("eth7", "10.9.1.1"), NULL, 1);
	in_net(PAIR V4("eth7", "10.9.1.1") V4("eth7", "10.9.1.2") V4("eth8", "10.9.2.1") V6("eth8", "fd00:9::1"), NULL,
		4);
	in_net(PAIR V4("eth7", "10.9.1.1") V4("eth8", "10.9.2.1"), "eth8", 1);
	in_net(PAIR V6("eth7", "fd00:9::2"), NULL, 1);
	in_net("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; " PAIR V4("eth7", "10.9.1.1"), NULL, 1);
}

/* ---- what grows with the ranks: connections, values put and got, messages after one another ---- */

static int64_t messages_of(struct vfm_hjob *j, int64_t *before)
{
	int64_t now = atomic_load(&j->n_messages), n = now - *before;

	*before = now;
	return n;
}

static void timed(struct vfm_comm *w, const char *what, int64_t n, int64_t hops)
{
	double *x = vfm_calloc((size_t)n + 1, sizeof(*x)), start = 0;
	int64_t at = 0;

	enum { CALLS = 20 };
	for (int i = -2; i < CALLS; i++) {
		if (i == 0) {
			start = vfm_now();
			messages_of(job_of(w), &at);
		}
		for (int64_t k = 0; k < n; k++)
			x[k] = value(VFM_F64, i + 9, rank, k);
		MUST(n ? vfm_all_reduce(w, NULL, vfm_t1(x, VFM_F64, n), &err) : vfm_barrier(w, NULL, &err));
		for (int64_t k = 0; k < n; k++)
			CHECK(x[k] == total(VFM_F64, i + 9, size, k));
	}
	start = (vfm_now() - start) / CALLS;
	CHECK(messages_of(job_of(w), &at) <= CALLS * hops);
	if (rank == 0)
		fprintf(stderr, "%d ranks: %s of %lld bytes: %.0f us, at most %lld messages after one another\n", size,
			what, (long long)n * 8, start * 1e6, (long long)hops);
	free(x);
}

static void growth(const struct setup *s)
{
	double start = vfm_now(), joined;
	struct vfm_comm *w = join(s), *c;
	struct vfm_hjob *j = job_of(w);
	int log = 0, locals, limit;
	int64_t at = 0, one = rank, all[RANKS];

	joined = vfm_now() - start;
	while (1 << log < size)
		log++;
	CHECK(published == 1); /* one value put */
	messages_of(j, &at);
	MUST(vfm_all_gather(w, NULL, vfm_t1(&one, VFM_I64, 1), vfm_t1(all, VFM_I64, size), NULL, &err));
	for (int r = 0; r < size; r++)
		CHECK(all[r] == r);
	CHECK(messages_of(j, &at) == log);
	for (int root = 0; root < size; root += 7) {
		one = rank == root ? 4711 + root : 0;
		MUST(vfm_broadcast(w, NULL, vfm_t1(&one, VFM_I64, 1), root, &err));
		CHECK(one == 4711 + root && messages_of(j, &at) <= log + (rank != root));
	}
	start = vfm_now();
	MUST(vfm_comm_split(w, rank % 2, 0, "half", &c, &err));
	start = vfm_now() - start;
	CHECK(messages_of(j, &at) == 3 * log);
	if (rank == 0)
		fprintf(stderr, "%d ranks: set-up %.0f ms, split %.1f ms\n", size, joined * 1e3, start * 1e3);
	timed(w, "barrier", 0, log);
	timed(w, "all_reduce", 30, log);
	timed(w, "all_reduce", 1000, 1000 * 8 * size <= 256 << 10 ? log : 2 * log);

	/* The monitors have those of their tree.  The first rank of a node has one to each of its ranks, until these
	 * have the node's memory.  All others are made for collectives, between ranks whose distance is a power of
	 * two. */
	locals = rank % s->per_node == 0 ? s->per_node - 1 : 1;
	limit = 2 * log + locals + j->mon->tree.n + 1;
	CHECK(atomic_load(&j->n_dialed) + atomic_load(&j->n_accepted) <= limit);
	CHECK(fetched <= 2 + 2 * log); /* rank 0, the first rank of the node, peers that this rank connects to */
	vfm_comm_free(c);
	leave(w);
}

static void sizes(void **state)
{
	(void)state;
	for (int n = 16; n <= 64; n *= 2)
		all_well(&(struct setup){.n = n, .per_node = 8}, growth);
	all_well(&(struct setup){.n = 11, .per_node = 4}, growth);
	all_well(&(struct setup){.n = 2, .per_node = 1}, growth); /* the cost of one message */
}

static int setup_all(void **state)
{
	(void)state;
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGPIPE, SIG_IGN);
	return sh == MAP_FAILED;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(proofs), cmocka_unit_test(false_servers),
		cmocka_unit_test(secrecy), cmocka_unit_test(silent), cmocka_unit_test(users),
		cmocka_unit_test(addresses), cmocka_unit_test(sizes)};

	return cmocka_run_group_tests(tests, setup_all, NULL);
}
