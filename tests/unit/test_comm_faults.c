/* Failures of ranks: each rank must learn which rank failed, and in time.  A rank dies, is stopped, hangs, ends early,
 * is in a deadlock, makes another call than the others, or never connects.  Placements of 2 ranks a node on 10 nodes
 * make a tree of monitors (comm/host/tree.c) in which rank 2 relays for ranks 3, 18 and 19, and rank 18 for rank 19. */
#include "comm_ranks.h"

#include <dirent.h>
#include <sys/random.h>
#include <sys/resource.h>

#include "comm/host/monitor_impl.h"

static char folder[] = "/tmp/vfm-comm-XXXXXX";

static void say_and_exit(double since)
{
	snprintf(sh->said[rank], sizeof(sh->said[rank]), "%s", err.msg);
	sh->at[rank] = vfm_now() - since;
	_exit(3);
}

static int call_other_group(struct vfm_comm *w, bool other, float *x)
{
	struct vfm_comm *g[2];

	MUST(vfm_comm_split(w, 0, 0, "a", &g[0], &err));
	MUST(vfm_comm_split(w, 0, 0, "b", &g[1], &err));
	return vfm_all_reduce(g[other], NULL, vfm_t1(x, VFM_F32, 64), &err);
}

/* Rank word[2] fails from round 5 on, as word[1] says: 'k' is killed, 's' is stopped, 'o' is stopped while others wait
 * for rank 19, 'h' sleeps, 'd' waits for a rank that waits for it, 'm' calls another collective, 'b' passes another
 * size, 'g' calls all_gather, 'w' is in another group of the same ranks, 'a' aborts, 'x' ends normally. */
static void until_it_breaks(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	float x[64] = {0};
	double t = vfm_now();

	alarm(25);
	if (s->word && rank < 2) /* rank 0 notices long waits before missing heartbeats */
		((struct vfm_hcomm *)w)->job->beat_timeout = 10;
	for (int round = 1;; round++) {
		bool fails = rank == sh->word[2] && round == 5;
		int rc, how = sh->word[1], n = fails && how == 'b' ? 60 : 64;

		t = vfm_now();
		if (fails)
			switch (how) {
			case 'k':
				kill(getpid(), SIGKILL);
				break;
			case 's':
			case 'o':
				kill(getpid(), SIGSTOP);
				break;
			case 'h':
				sleep(20);
				break;
			case 'a':
				vfm_comm_abort(w, "the disk is full");
				break;
			case 'x':
				leave(w);
				exit(0);
			default:
				break;
			}
		if (how == 'd' && round == 5 && (fails || rank == 0))
			rc = vfm_recv(w, NULL, vfm_t1(x, VFM_F32, 64), fails ? 0 : sh->word[2], &err);
		else if (how == 'o' && round == 5)
			rc = vfm_recv(w, NULL, vfm_t1(x, VFM_F32, 64), rank == 19 ? 0 : 19, &err);
		else if (fails && how == 'm')
			rc = vfm_barrier(w, NULL, &err);
		else if (fails && how == 'g')
			rc = vfm_all_gather(w, NULL, vfm_t1(x, VFM_F32, 64 / size), vfm_t1(x, VFM_F32, 64), NULL, &err);
		else if (how == 'w' && round == 5)
			rc = call_other_group(w, fails, x);
		else
			rc = vfm_all_reduce(w, NULL, vfm_t1(x, VFM_F32, n), &err);
		if (rc < 0)
			say_and_exit(t);
		usleep(1000);
	}
}

/* The file of the flight recorder: the reason, then the calls up to the failed one. */
static void recorded(const char *path, const char *why, bool open)
{
	char *text, want[VFM_ERR_MAX + 32];
	size_t n;

	assert_int_equal(vfm_read_file(path, 1 << 20, &text, &n, &err), 0);
	snprintf(want, sizeof(want), "\"why\":\"%.100s", why);
	assert_non_null(strstr(text, want));
	assert_non_null(
		strstr(text, "\"group\":\"world\",\"number\":7,\"kind\":\"all_reduce\",\"bytes\":256,\"start_s\":"));
	assert_true(!open || strstr(text, "\"end_s\":null"));
	free(text);
}

/* Returns whether the monitors of a rank have no way to rank 0 but through the victim. */
static bool is_orphan(const struct setup *s, int victim, int r)
{
	int node_of[RANKS], nodes;
	struct vfm_rank_tree t;
	bool below;

	for (int k = 0; k < s->n; k++)
		node_of[k] = s->per_node ? k / s->per_node : 0;
	nodes = node_of[s->n - 1] + 1;
	vfm_tree_init(&t, node_of, s->n, r);
	assert_int_equal(t.nodes, nodes);
	below = r != victim && vfm_tree_is_above(&t, victim, r);
	vfm_tree_release(&t);
	return below;
}

/* The calls up to the failed one. */
static void read_record(const struct setup *s, int how, int r)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/flight-%d.jsonl", folder, r);
	if (access(path, R_OK) != 0)
		fail_msg("%d ranks, '%c': no %s", s->n, how, path);
	recorded(path, sh->said[r], how == 'h' || how == 's');
	unlink(path);
}

/* All ranks must say `what` within this time, and the same.  A rank that loses its way to rank 0 cannot know how long
 * others have waited. */
static void breaks_in(struct setup s, int victim, int how, double within, const char *what)
{
	bool lives = strchr("sohx", how), cut = strchr("kso", how);
	int st, first = victim == 0 ? 1 : 0, a, b;
	pid_t pid[RANKS];
	char path[128];

	s.o.recorder_dir = folder;
	start(&s, pid, until_it_breaks);
	sh->word[2] = victim;
	sh->word[1] = how;
	for (int r = 0; r < s.n; r++) {
		if (r == victim && lives)
			continue;
		waitpid(pid[r], &st, 0);
		if (how == 'k' && r == victim)
			continue;
		if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], what) ||
			(!(cut && is_orphan(&s, victim, r)) && strcmp(sh->said[r], sh->said[first]) != 0))
			fail_msg("'%c' of rank %d: rank %d: status %#x, said '%s', rank %d '%s'", how, victim, r, st,
				sh->said[r], first, sh->said[first]);
		if (sh->at[r] > within)
			fail_msg("'%c' of rank %d: rank %d needed %.2f s", how, victim, r, sh->at[r]);
		if (victim && how != 'o')
			read_record(&s, how, r);
	}
	if (how == 'd' &&
		(sscanf(sh->said[first], "rank %d (%*[^)]) is in a deadlock: it waits for rank %d, which", &a, &b) !=
				2 ||
			a + b != victim || a == b))
		fail_msg("'d' of rank %d: '%s'", victim, sh->said[first]);
	print_message("%c: %s (after %.2f s)\n", how, sh->said[first], sh->at[first]);
	if (lives) {
		kill(pid[victim], SIGKILL);
		waitpid(pid[victim], &st, 0);
	}
	snprintf(path, sizeof(path), "%s/flight-%d.jsonl", folder, victim);
	unlink(path);
}

static void breaks(struct setup s, int how, double within, const char *what)
{
	breaks_in(s, 2, how, within, what);
}

static void failures(void **state)
{
	struct setup one = {.n = 4, .o.timeout_s = 2}, two = {.n = 4, .per_node = 2, .o.timeout_s = 2};

	(void)state;
	breaks(one, 'k', 1.5, "rank 2 (node0) died");
	breaks(two, 'k', 1.5, "rank 2 (node1) died");
	breaks(one, 's', 6, "rank 2 (node0) has not answered");
	breaks(one, 'h', 6, "rank 2 (node0) hangs: it has not reached all_reduce number 8 of 'world'");
	breaks(two, 'h', 6, "rank 2 (node1) hangs: it has not reached all_reduce");
	breaks(one, 'd', 6, "is in a deadlock");
	breaks(one, 'm', 2, "in barrier number 8");
	breaks(one, 'g', 2, "in all_gather number 8");
	breaks(two, 'g', 2, "in all_gather number 8");
	breaks(one, 'w', 6, "is in a deadlock: it waits for rank");
	breaks(two, 'w', 6, "is in a deadlock: it waits for rank");
	breaks(two, 'b', 2, "(240 bytes of f32)");
	breaks(one, 'a', 2, "rank 2 (node0) failed: the disk is full");
	breaks(one, 'x', 6, "rank 2 (node0) ended normally, but too early");
}

static const struct setup tree = {.n = 20, .per_node = 2, .o.timeout_s = 2};

/* The victim relays for others. */
static void inner_victims(void **state)
{
	(void)state;
	breaks_in(tree, 2, 'k', 1.5, "rank 2 (node1) died");
	breaks_in(tree, 2, 's', 6, "rank 2 (node1) has not answered");
	breaks_in(tree, 2, 'h', 6, "rank 2 (node1) hangs: it has not reached all_reduce");
	breaks_in(tree, 2, 'd', 6, "is in a deadlock");
	breaks_in(tree, 2, 'b', 2, "(240 bytes of f32)");
	breaks_in(tree, 2, 'a', 2, "rank 2 (node1) failed: the disk is full");
	breaks_in(tree, 2, 'x', 6, "rank 2 (node1) ended normally, but too early");
	breaks_in(tree, 18, 'k', 1.5, "rank 18 (node9) died");
	breaks_in(tree, 18, 's', 6, "rank 18 (node9) has not answered");
}

/* Rank 0 waits for rank 19, which it cannot reach since rank 2 is stopped. */
static void silent_relay(void **state)
{
	struct setup s = tree;

	(void)state;
	s.word = 1;
	breaks_in(s, 2, 'o', 6, "rank 2 (node1) has not answered");
}

/* All that rank 0 learns of the victim and the victim of others passes ranks 18 and 2. */
static void relayed_victims(void **state)
{
	(void)state;
	breaks_in(tree, 19, 'k', 1.5, "rank 19 (node9) died");
	breaks_in(tree, 19, 's', 6, "rank 19 (node9) has not answered");
	breaks_in(tree, 19, 'h', 6, "rank 19 (node9) hangs: it has not reached all_reduce");
	breaks_in(tree, 19, 'd', 6, "is in a deadlock");
	breaks_in(tree, 19, 'b', 2, "(240 bytes of f32)");
	breaks_in(tree, 19, 'a', 2, "rank 19 (node9) failed: the disk is full");
	breaks_in(tree, 19, 'x', 6, "rank 19 (node9) ended normally, but too early");
	breaks_in(tree, 3, 'k', 1.5, "rank 3 (node1) died");
}

static void root_victims(void **state)
{
	(void)state;
	breaks_in(tree, 0, 'k', 1.5, "rank 0 (node0) died");
	breaks_in(tree, 0, 's', 6, "rank 0 (node0) has not answered");
	breaks_in(tree, 0, 'h', 6, "rank 0 (node0) hangs: it has not reached all_reduce");
}

/* Rank 1 computes for longer than the limit of heartbeats, and is then stopped, long before the time-out of calls.
 * Heartbeats come from a thread of their own: only the second is a failure. */
static void slow_then_stopped(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	struct vfm_hjob *j = ((struct vfm_hcomm *)w)->job;
	double t;

	CHECK(j->timeout == s->o.timeout_s && j->beat_timeout == (s->o.timeout_s < 30 ? s->o.timeout_s : 30));
	j->beat_timeout = 3; /* of every rank, before the first second is over */
	MUST(vfm_barrier(w, NULL, &err));
	t = vfm_now() + 4.5;
	while (rank == 1 && vfm_now() < t)
		;
	MUST(vfm_barrier(w, NULL, &err));
	if (rank == 1)
		raise(SIGSTOP);
	t = vfm_now();
	if (vfm_barrier(w, NULL, &err) < 0)
		say_and_exit(t);
	_exit(0);
}

static void stopped_ranks(void **state)
{
	struct setup s = {.n = 3, .o.timeout_s = 40};
	const char *want = "rank 1 (node0) has not answered for 3.";
	pid_t pid[RANKS];
	int st;

	(void)state;
	start(&s, pid, slow_then_stopped);
	for (int r = 0; r < s.n; r += 2) {
		waitpid(pid[r], &st, 0);
		if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], want) || sh->at[r] > 8)
			fail_msg("rank %d: status %#x, said '%s' after %.2f s", r, st, sh->said[r], sh->at[r]);
	}
	kill(pid[1], SIGKILL);
	waitpid(pid[1], &st, 0);
}

/* All ranks are stopped for longer than the limit of heartbeats, which is no failure.  Then rank 3 alone is, at once.
 */
static void suspended(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	double t;

	((struct vfm_hcomm *)w)->job->beat_timeout = 3;
	for (;;) {
		t = vfm_now();
		if (rank == 3 && sh->word[3])
			raise(SIGSTOP);
		if (vfm_barrier(w, NULL, &err) < 0)
			say_and_exit(t);
		sh->word[0] = 1;
		usleep(10000);
	}
}

static void suspended_job(void **state)
{
	struct setup s = {.n = 6, .per_node = 2, .o.timeout_s = 40};
	pid_t pid[RANKS];
	int st;

	(void)state;
	start(&s, pid, suspended);
	while (!sh->word[0])
		usleep(1000);
	for (int r = 0; r < s.n; r++)
		kill(pid[r], SIGSTOP);
	sleep(8);
	sh->word[3] = 1;
	for (int r = s.n - 1; r >= 0; r--) { /* ranks find messages of others when they resume */
		kill(pid[r], SIGCONT);
		usleep(100000);
	}
	for (int r = 0; r < s.n; r++) {
		if (r == 3)
			continue;
		waitpid(pid[r], &st, 0);
		if (!strstr(sh->said[r], "rank 3 (node1) has not answered") || sh->at[r] > 6)
			fail_msg("rank %d: status %#x, said '%s' after %.2f s", r, st, sh->said[r], sh->at[r]);
	}
	kill(pid[3], SIGKILL);
	waitpid(pid[3], &st, 0);
}

static void first_dies(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	double t = vfm_now();

	if (rank == 0)
		kill(getpid(), SIGKILL);
	if (vfm_barrier(w, NULL, &err) < 0)
		say_and_exit(t);
	exit(0);
}

static void rank_zero(void **state)
{
	struct setup s = {.n = 3, .o.timeout_s = 3};
	pid_t pid[RANKS];
	int st;

	(void)state;
	start(&s, pid, first_dies);
	for (int r = 0; r < s.n; r++) {
		waitpid(pid[r], &st, 0);
		if (r &&
			(!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], "rank 0 (node0) died") ||
				sh->at[r] > 1.5))
			fail_msg("rank %d: status %#x, said '%s' after %.2f s", r, st, sh->said[r], sh->at[r]);
	}
}

/* Rank `word` listens, takes part in the exchange, and then dies or (word >= STOPS) is stopped. */
enum { STOPS = 100 };
static void never_comes(const struct setup *s)
{
	struct vfm_endpoint *_Atomic known[RANKS] = {0};
	struct vfm_hjob j = {.l = &l, .rank = rank, .endpoint = known};
	double t = vfm_now();
	struct vfm_comm *w;

	place(s);
	if (rank == s->word % STOPS) {
		MUST(vfm_net_open(&j, &err));
		if (s->word >= STOPS)
			raise(SIGSTOP);
		_exit(0);
	}
	if (vfm_comm_host_new(&l, &s->o, &w, &err) < 0)
		say_and_exit(t);
	_exit(0);
}

static void one_is_missing(struct setup s, double within, const char *what)
{
	pid_t pid[RANKS];
	char want[200];
	int st;

	start(&s, pid, never_comes);
	for (int r = 0; r < s.n; r++) {
		if (r == s.word % STOPS)
			continue;
		waitpid(pid[r], &st, 0);
		snprintf(want, sizeof(want), "rank %d (node%d) %s", s.word % STOPS,
			s.per_node ? s.word % STOPS / s.per_node : 0,
			s.word >= STOPS && is_orphan(&s, s.word % STOPS, r) ? "accepted no connection" : what);
		if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], want))
			fail_msg("without rank %d: rank %d: status %#x, said '%s'", s.word, r, st, sh->said[r]);
		if (sh->at[r] > within)
			fail_msg("without rank %d: rank %d needed %.2f s", s.word, r, sh->at[r]);
	}
	kill(pid[s.word % STOPS], SIGKILL);
	waitpid(pid[s.word % STOPS], &st, 0);
	print_message("%s (after %.2f s)\n", sh->said[s.word == 0], sh->at[s.word == 0]);
}

/* The time-out does not matter for a rank that has ended: nothing listens any more. */
static void missing_ranks(void **state)
{
	(void)state;
	for (int r = 0; r < 3; r++)
		one_is_missing((struct setup){.n = 3, .word = r, .o.timeout_s = 50}, 5, "ended before");
	for (int r = 0; r < 4; r++) /* rank 2 has the shared memory of its node */
		one_is_missing((struct setup){.n = 4, .per_node = 2, .word = r, .o.timeout_s = 50}, 5, "ended before");
	one_is_missing((struct setup){.n = 20, .per_node = 2, .word = 2, .o.timeout_s = 50}, 6, "ended before");
	one_is_missing((struct setup){.n = 20, .per_node = 2, .word = 18, .o.timeout_s = 50}, 6, "ended before");
	one_is_missing((struct setup){.n = 3, .word = STOPS + 1, .o.timeout_s = 3}, 8, "never connected within 3.");
	one_is_missing((struct setup){.n = 20, .per_node = 2, .word = STOPS + 2, .o.timeout_s = 3}, 8,
		"never connected within 3.");
}

/* Ranks that end at different times, without calls, are no failure. */
static void slow_end(const struct setup *s)
{
	struct vfm_comm *w = join(s);

	MUST(vfm_barrier(w, NULL, &err));
	usleep((unsigned)(300000 * (rank % 4)));
	leave(w);
}

static void ends_in_order(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 4, .o.timeout_s = 3}, slow_end);
}

static void out_of_order(void **state)
{
	(void)state;
	all_well(&(struct setup){.n = 20, .per_node = 2, .o.timeout_s = 5}, slow_end);
}

/* Rank 2 has ended, and stays to relay for ranks 18 and 19, which lose it before they end. */
static void dies_in_its_end(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	double t;

	alarm(25);
	MUST(vfm_barrier(w, NULL, &err));
	t = vfm_now();
	if (rank == 2)
		leave(w); /* killed there */
	if (rank < 18) {
		sh->at[rank] = 1;
		leave(w);
		exit(0);
	}
	while (vfm_hjob_check(((struct vfm_hcomm *)w)->job, &err) >= 0 && vfm_now() - t < 10)
		usleep(1000);
	say_and_exit(t);
}

static void end_of_a_relay(void **state)
{
	struct setup s = tree;
	char path[128], *text;
	pid_t pid[RANKS];
	size_t n;
	int st;

	(void)state;
	s.o.recorder_dir = folder;
	start(&s, pid, dies_in_its_end);
	while (sh->at[17] == 0)
		usleep(1000);
	usleep(500000);
	kill(pid[2], SIGKILL);
	for (int r = 0; r < s.n; r++) {
		waitpid(pid[r], &st, 0);
		if (r >= 18 && (!strstr(sh->said[r], "rank 2 (node1) died") || sh->at[r] > 2))
			fail_msg("rank %d said '%s' after %.2f s", r, sh->said[r], sh->at[r]);
	}
	snprintf(path, sizeof(path), "%s/flight-0.jsonl", folder);
	assert_int_equal(vfm_read_file(path, 1 << 20, &text, &n, &err), 0); /* rank 0 waits for all to end */
	assert_non_null(strstr(text, "rank 2 (node1) died"));
	free(text);
}

/* ---- malformed messages of a rank that has proved itself ---- */

static void send_malformed(const struct setup *s)
{
	struct vfm_comm *w = join(s);
	struct vfm_hjob *j = ((struct vfm_hcomm *)w)->job;
	struct mon_msg m = vfm_mon_msg(STATE, rank, NULL);
	size_t n = sizeof(m.h);
	double t;

	alarm(25);
	MUST(vfm_barrier(w, NULL, &err));
	t = vfm_now();
	switch (s->word) {
	case 0:
		m.h.magic++;
		break;
	case 1:
		m.h.bytes = 3 * ACTS * sizeof(m.act[0]);
		break;
	case 2:
		m.h.bytes = 1;
		break;
	case 3:
		m.h.rank = 0; /* of a rank that is not below the sender */
		break;
	case 4:
		m.h.rank = -1;
		break;
	case 5:
		m.h.rank = size;
		break;
	case 6:
		m.h.type = PROBE;
		break;
	case 7:
		m.h.type = FAIL;
		break;
	case 8:
		m.h.type = MON_TYPES;
		break;
	default: /* well-formed, with calls that no rank can be in: of no consequence */
		m.h.bytes = ACTS * sizeof(m.act[0]);
		n += m.h.bytes;
		memset(m.act, 0x7f, m.h.bytes);
		for (int i = 0; i < ACTS; i++)
			m.act[i].waits = i % 2 ? NAN : 1e300;
		break;
	}
	if (rank == 3)
		CHECK(send(j->mon->peer[j->mon->tree.parent].conn->fd, &m, n, MSG_NOSIGNAL) == (ssize_t)n);
	while (vfm_hjob_check(j, &err) >= 0 && vfm_now() - t < (s->word > 8 ? 1.5 : 10))
		usleep(1000);
	if (s->word > 8) {
		everything(w, 1);
		leave(w);
		exit(0);
	}
	say_and_exit(t);
}

static void malformed(void **state)
{
	struct setup s = {.n = 4, .per_node = 2, .o.timeout_s = 20};
	pid_t pid[RANKS];
	int st;

	(void)state;
	for (s.word = 0; s.word < 9; s.word++) {
		start(&s, pid, send_malformed);
		for (int r = 0; r < s.n; r++) {
			waitpid(pid[r], &st, 0);
			/* rank 3 sees that its parent closes the connection */
			if (!strstr(sh->said[r], r == 3 ? "died" : "rank 3 (node1) died") || sh->at[r] > 2)
				fail_msg("message %d: rank %d said '%s'", s.word, r, sh->said[r]);
		}
	}
	all_well(&s, send_malformed);
}

/* Any header passes or is refused; those that pass have sizes and ranks that the receiver can use. */
static void any_header(void **state)
{
	int node_of[20], passed = 0;
	struct vfm_rank_tree t;

	(void)state;
	for (int r = 0; r < 20; r++)
		node_of[r] = r / 2;
	vfm_tree_init(&t, node_of, 20, 2);
	for (int i = 0; i < 2000000; i++) {
		static const int from[] = {0, 3, 18};
		uint32_t x[4];
		struct mon_head h;
		int f = from[i % 3];

		assert_int_equal(getrandom(x, sizeof(x), 0), sizeof(x));
		h = (struct mon_head){.magic = MSG_MAGIC + (x[0] % 8 == 0),
			.type = x[1] % (MON_TYPES + 2),
			.rank = x[0] % 16 ? (int)(x[2] % 24) - 2 : (int)x[2],
			.bytes = x[1] >> 31 ? x[3] : x[3] % 1024 / 64 * 64};
		if (!vfm_mon_head_ok(&t, f, &h))
			continue;
		passed++;
		assert_true(h.magic == MSG_MAGIC && h.rank >= 0 && h.rank < 20 && h.type > 0 && h.type < MON_TYPES);
		assert_true(h.bytes <= sizeof(((struct mon_msg *)0)->act) || h.type == FAIL || h.type == SUSPECT);
		assert_true(h.bytes <= sizeof(struct mon_msg) - sizeof(h));
		assert_true(h.type == FAIL || h.type == PROBE || f != 0 || h.rank == 0);
		assert_true(f != 3 || h.rank == 3);
		assert_true(f != 18 || h.rank >= 18);
	}
	assert_true(passed > 1000);
	vfm_tree_release(&t);
}

/* ---- too few files ---- */

static void few_files(const struct setup *s)
{
	struct rlimit lim = {.rlim_cur = 40, .rlim_max = 40};
	struct vfm_comm *w;
	double t = vfm_now();

	place(s);
	if (rank == s->word)
		setrlimit(RLIMIT_NOFILE, &lim);
	if (vfm_comm_host_new(&l, &s->o, &w, &err) < 0)
		say_and_exit(t);
	exit(0);
}

static void file_limits(void **state)
{
	struct setup s = {.n = 4, .per_node = 2, .o.timeout_s = 20};
	pid_t pid[RANKS];
	int st;

	(void)state;
	for (s.word = 0; s.word < 4; s.word++) {
		start(&s, pid, few_files);
		for (int r = 0; r < s.n; r++) {
			char want[32];

			waitpid(pid[r], &st, 0);
			if (r == s.word)
				snprintf(want, sizeof(want), "may open 40 files");
			else
				snprintf(want, sizeof(want), "rank %d ", s.word);
			if (!WIFEXITED(st) || WEXITSTATUS(st) != 3 || !strstr(sh->said[r], want) || sh->at[r] > 5)
				fail_msg("rank %d: status %#x, said '%s'", r, st, sh->said[r]);
		}
	}
}

static int setup_all(void **state)
{
	(void)state;
	sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	signal(SIGPIPE, SIG_IGN);
	return sh == MAP_FAILED || !mkdtemp(folder);
}

static int teardown_all(void **state)
{
	(void)state;
	vfm_rm_rf(folder, &err);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(failures), cmocka_unit_test(inner_victims),
		cmocka_unit_test(silent_relay), cmocka_unit_test(relayed_victims), cmocka_unit_test(root_victims),
		cmocka_unit_test(stopped_ranks), cmocka_unit_test(suspended_job), cmocka_unit_test(rank_zero),
		cmocka_unit_test(missing_ranks), cmocka_unit_test(ends_in_order), cmocka_unit_test(out_of_order),
		cmocka_unit_test(end_of_a_relay), cmocka_unit_test(malformed), cmocka_unit_test(any_header),
		cmocka_unit_test(file_limits)};

	return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
