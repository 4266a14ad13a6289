/* machine.h - the rates of a machine, read from a JSON file (vfm-machine(5)): of one GPU and of the links between many,
 * or of a CPU.  Each rate has a low, a middle and a high estimate.  Low means a slower machine: lower rates, longer
 * gaps.  Peaks of data sheets are in spec/cost/hw.h, under `name`.
 */
#ifndef VFM_DEVICE_SIM_MACHINE_H
#define VFM_DEVICE_SIM_MACHINE_H

#include "base/err.h"
#include "spec/model/dtype.h"

enum vfm_estimate { VFM_LOW, VFM_MID, VFM_HIGH, VFM_ESTIMATES };

struct vfm_rate_range {
	double v[VFM_ESTIMATES];
};

enum { VFM_MACHINE_TILES = 8, VFM_MACHINE_ATTN = 32, VFM_MACHINE_CPU_RATES = 2048 };

enum vfm_machine_kind { VFM_MACHINE_GPU, VFM_MACHINE_CPU };

/* The measured rate of an op or a collective of a CPU (estimate_cpu.c). */
struct vfm_cpu_rate {
	char op[24]; /* "gemm/nt", "attn", "norm"; "comm/all_reduce" */
	enum vfm_dtype dtype;
	double size[3]; /* m, n, k; or head dim, queries, keys; or bytes, operands (ranks of a collective), 1 */
	double rate;    /* 10^9 FLOPs per second for products and attention, 10^9 bytes per second otherwise */
};

struct vfm_machine {
	enum vfm_machine_kind kind;
	char name[64];                   /* of the device, as reported by its driver */
	int64_t capacity;                /* bytes of device memory */
	int64_t context;                 /* bytes of it that the driver and the libraries use */
	int64_t sms;                     /* multiprocessors */
	struct vfm_rate_range gemm_bf16; /* TFLOP/s of the product of two square matrices of gemm_size */
	struct vfm_rate_range gemm_f32;  /* the same in f32 */
	struct vfm_rate_range gemm_f8;   /* the same in fp8; zeros: unknown */
	int64_t gemm_size;
	struct vfm_gemm_tile {
		int64_t m, n;
		double rate; /* of a multiprocessor, as a fraction of its rate with the best tile */
	} tile[VFM_MACHINE_TILES];
	int n_tiles;
	/* the fraction of a product's results, written and read back, that no other work overlaps: 0 to 1; low is 1 or
	 * near */
	struct vfm_rate_range epilogue;
	struct vfm_rate_range copy;   /* GB/s of device memory, bytes read + written */
	struct vfm_rate_range kernel; /* bandwidth of a memory-bound kernel as a fraction of copy */
	/* GB/s per multiprocessor of such a kernel on few multiprocessors; zeros: unknown */
	struct vfm_rate_range sm_bw;
	/* ascending head_dim, then ascending tokens */
	struct vfm_attn_rate {
		int64_t head_dim, tokens;
		struct vfm_rate_range forward, backward; /* TFLOP/s; a backward counts 2.5 forwards */
	} attn[VFM_MACHINE_ATTN];
	int n_attn;
	struct vfm_rate_range gap, graph_gap; /* microseconds before a kernel: launched alone; in a graph */
	struct vfm_rate_range
		/* microseconds that the host takes to enqueue a launch, or a graph; zeros: unknown */
		launch_host;
	struct vfm_rate_range least; /* microseconds that the shortest kernel takes; zeros: unknown */
	int64_t host;                /* bytes of host memory for each GPU; 0: unknown */
	struct vfm_rate_range pcie;  /* GB/s between device and pinned host memory, each direction */
	/* For jobs of several GPUs; 0: unknown. */
	int64_t node_gpus; /* GPUs joined by NVLink; for a CPU: the ranks that computed during the measurement */
	struct vfm_rate_range
		nvlink; /* GB/s of a GPU in large collectives within a node: the bus bandwidth of nccl-tests */
	struct vfm_rate_range network;        /* GB/s between nodes per GPU */
	struct vfm_rate_range collective;     /* microseconds of the smallest collective of two GPUs of a node */
	struct vfm_rate_range hop;            /* added by each further GPU of a ring within a node */
	struct vfm_rate_range network_hop;    /* added by each further node of a ring */
	struct vfm_rate_range collective_sms; /* multiprocessors that a collective occupies */
	/* A CPU has only these, and name, capacity and copy from above. */
	int64_t threads; /* of each rank during the measurement */
	/* packed copies of weights of f32 and of bf16 (device/cpu/cpu.h) */
	struct vfm_cpu_copy_rule {
		int64_t few, rows, columns, depth, bytes;
	} copies[2];
	struct vfm_cpu_rate cpu[VFM_MACHINE_CPU_RATES];
	int n_cpu;
};

/* Reads a machine.  A `name` with a slash or a dot is a path.  Other names are NAME.json in $VFM_MACHINE_DIR, or else
 * in the machines of this installation: share/vfm/machines or share/machines next to the folder of the command.
 * VFM_EUSAGE, naming file and key: the file does not follow vfm-machine(5); VFM_EENV: it cannot be read. */
int vfm_machine_load(struct vfm_machine *m, const char *name, struct vfm_err *err);
/* Sets *m to a machine that only describes memory; all rates are 1.  ranks: of the jobs on a CPU, which keeps no
 * copies of weights. */
void vfm_machine_of_memory(struct vfm_machine *m, enum vfm_machine_kind kind, int64_t capacity, int ranks);
/* Like vfm_machine_load, from a string; `what` names it in errors. */
int vfm_machine_parse(struct vfm_machine *m, const char *text, size_t len, const char *what, struct vfm_err *err);

#endif
