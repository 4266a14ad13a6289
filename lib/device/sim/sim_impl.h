/* sim_impl.h - shared by the files of the simulated device; private.
 *
 *   sim_dev.c    memory, ops, copies; opens and frees the device
 *   sim_time.c   streams, events, graphs: when work begins and ends
 *   sim_memory.c the memory by owner over time
 *   world.c      the simulated ranks of a job
 *
 * A stream has a time: the end of its work so far.  Behind a collective of simulated ranks, a stream queues work until
 * all ranks have arrived.  Without a queue, work gets its time at once.
 */
#ifndef VFM_DEVICE_SIM_SIM_IMPL_H
#define VFM_DEVICE_SIM_SIM_IMPL_H

#include "device/dev/holders.h"
#include "device/dev/mapped.h"
#include "device/dev/staging.h"
#include "io/names.h"
#include "device/sim/estimate.h"
#include "device/sim/world.h"

enum { VFM_SIM_SMALL, VFM_SIM_LARGE, VFM_SIM_ZONES };

struct sim_clock {
	double s[VFM_ESTIMATES];
};

/* The time of an event's record; not known while the record is in a queue. */
struct sim_ticket {
	int users;
	bool known;
	struct sim_clock at;
};

enum sim_item_kind { SIM_LAUNCH, SIM_MEET, SIM_RECORD, SIM_WAIT };

/* An element of a queue. */
struct sim_item {
	enum sim_item_kind kind;
	size_t launch;                   /* number of the launch since open: SIM_LAUNCH, SIM_MEET */
	struct sim_clock host;           /* when it was enqueued */
	float overlapped[VFM_ESTIMATES]; /* work of a launch that overlaps another stream's */
	bool shares;                     /* leaves multiprocessors to that stream */
	union {
		struct sim_ticket *ticket; /* SIM_RECORD, SIM_WAIT */
		struct sim_guest *guest;   /* SIM_MEET */
	};
};

/* The meetings of a collective. */
struct sim_guest {
	int n;
	struct {
		struct vfm_sim_invitation to;
		struct vfm_sim_meeting *m; /* NULL: not arrived yet */
	} v[];
};

struct sim_stream {
	struct vfm_stream s; /* first */
	int number;          /* 0: the compute stream */
	void *scratch;       /* for its ops (libraries.h); NULL: none yet */
	size_t scratch_bytes;
	struct sim_clock now;
	struct sim_item *queue; /* items [head, n) */
	size_t head, n, cap;
	struct sim_stream *next; /* of the device */
};

struct vfm_event {
	struct sim *dev;
	struct sim_ticket *ticket; /* of the last record; NULL: never recorded */
};

/* The contents of a small array on the device. */
struct sim_known {
	char *at;
	size_t bytes;
	char data[];
};

struct sim_texts { /* strings by content, at fixed addresses */
	struct vfm_names names;
	char **v; /* [names.n] */
	size_t cap;
};

/* A launch of the last step: the fractions of its time, and the seconds, that other streams were active meanwhile. */
struct sim_past {
	uint32_t what; /* hash_launch */
	float part[VFM_ESTIMATES], seconds[VFM_ESTIMATES];
};

/* A packed copy that a CPU keeps of an operand of products. */
struct sim_copy {
	const void *p;
	int64_t ld, n, k, bytes;
	bool trans;
};

struct sim {
	struct vfm_dev dev; /* first */
	struct vfm_machine machine;
	struct vfm_sim_world *world; /* NULL: one rank */
	char *base;                  /* start of the device's addresses; unreadable */
	size_t reserved;
	double link[VFM_ESTIMATES];      /* from vfm_sim_link_busy: the largest rate of the collectives in flight */
	int64_t capacity;                /* of the memory, for program and libraries */
	int64_t scratch, outside;        /* struct vfm_sim_held */
	uint64_t zone_at[VFM_SIM_ZONES]; /* offset of each zone */
	struct vfm_mapped mapped;
	struct vfm_holders holders;
	struct sim_memory *memory; /* NULL: not recorded */
	struct vfm_ranges pinned;
	struct sim_known **known;
	size_t n_known, cap_known;
	struct sim_copy *copy; /* of a CPU */
	size_t n_copies, cap_copies;
	struct sim_clock host;
	double expert_skew;
	bool graph; /* a capture is in progress */
	struct sim_stream *streams;
	int n_streams;
	struct sim_stream *side;       /* the stream whose ops are confined to some multiprocessors; NULL: none yet */
	struct sim_clock comm_until;   /* the end of collectives whose time is known */
	struct vfm_sim_launch *launch; /* since the last clear */
	size_t n, cap, cleared;        /* cleared: launches before launch[0] */
	struct sim_past *past;         /* [n_past] the launches before the last clear */
	size_t n_past, cap_past;
	int64_t past_shift; /* index of the latest launch in past, minus its index in launch */
	struct sim_texts texts;
	/* at the start of the capture */
	size_t graph_n;
	struct sim_clock graph_now;
};

static inline struct sim *sim_of(const struct vfm_dev *d)
{
	return (struct sim *)d;
}
static inline struct sim_stream *sim_stream_of(struct vfm_stream *s)
{
	return (struct sim_stream *)s;
}

/* Enqueues *l; its begin and gap are set later.  overlapped [VFM_ESTIMATES]: its work while another stream occupies
 * multiprocessors; NULL: it leaves no multiprocessors to others. */
void sim_add_launch(struct sim_stream *s, const struct vfm_sim_launch *l, const double *overlapped);

/* Adds bytes, which may be negative, to an owner. */
void sim_memory_change(struct sim *d, uint32_t owner, int64_t bytes);
void sim_memory_clear(struct sim *d); /* begins a step */
void sim_memory_free(struct sim_memory *m);

void sim_release_scratch(struct sim_stream *s);
struct vfm_stream *sim_stream_new(struct vfm_dev *dev, bool async, struct vfm_err *err);
void sim_stream_free(struct vfm_stream *s);
int sim_stream_sync(struct vfm_stream *s, struct vfm_err *err);
struct vfm_event *sim_event_new(struct vfm_dev *dev, struct vfm_err *err);
void sim_event_free(struct vfm_event *e);
int sim_event_record(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err);
int sim_event_wait(struct vfm_event *e, struct vfm_stream *s, struct vfm_err *err);
int sim_event_sync(struct vfm_event *e, struct vfm_err *err);
bool sim_event_passed(struct vfm_event *e);
int sim_event_elapsed(struct vfm_event *a, struct vfm_event *b, double *s, struct vfm_err *err);
int sim_graph_begin(struct vfm_stream *s, struct vfm_err *err);
int sim_graph_end(struct vfm_stream *s, bool run, struct vfm_err *err);

#endif
