/* emu.cpp - the scheduler of device/cuda/kern/emu.h: the threads of a block are fibers on one host thread.
 *
 * A fiber runs the threads of the block one after another until one of them has to wait; another fiber then continues
 * with the rest.  So kernels without barriers and shuffles run in a plain loop.  A warp runs as far as possible before
 * the next one starts.
 */
#include "device/cuda/cuda_impl.h"
#include "device/cuda/kern/emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

enum { MAX_THREADS = 1024, STACK = 256 << 10, GUARD = 4096, MAX_SHARED = VFM_CUDA_LEAST_SHARED };
enum state { NEW, READY, AT_BARRIER, AT_LANES, DONE };

/* ---- changing places ---- */

#ifdef __x86_64__
struct place {
	void *sp;
};
extern "C" void vfm_emu_switch(struct place *from, const struct place *to);
/* The callee-saved state: six registers and the stack. */
__asm__(".text\n"
	".globl vfm_emu_switch\n"
	".hidden vfm_emu_switch\n"
	".type vfm_emu_switch, @function\n"
	"vfm_emu_switch:\n"
	"	pushq %rbp\n	pushq %rbx\n	pushq %r12\n	pushq %r13\n	pushq %r14\n	pushq %r15\n"
	"	movq %rsp, (%rdi)\n"
	"	movq (%rsi), %rsp\n"
	"	popq %r15\n	popq %r14\n	popq %r13\n	popq %r12\n	popq %rbx\n	popq %rbp\n"
	"	ret\n"
	".size vfm_emu_switch, .-vfm_emu_switch\n");
static void place_init(struct place *p, char *stack, size_t size, void (*entry)(void))
{
	void **top = (void **)(stack + size);

	*--top = NULL; /* return address of entry, which does not return */
	*--top = (void *)entry;
	for (int i = 0; i < 6; i++)
		*--top = NULL;
	p->sp = top;
}
#else
#include <ucontext.h>
struct place {
	ucontext_t ctx;
};
static void vfm_emu_switch(struct place *from, const struct place *to)
{
	swapcontext(&from->ctx, &to->ctx);
}
static void place_init(struct place *p, char *stack, size_t size, void (*entry)(void))
{
	getcontext(&p->ctx);
	p->ctx.uc_stack.ss_sp = stack;
	p->ctx.uc_stack.ss_size = size;
	p->ctx.uc_link = NULL;
	makecontext(&p->ctx, entry, 0);
}
#endif

struct fiber {
	struct place place;
	const void *stack; /* as sanitizers require */
	size_t size;
	void *fake;
};

static struct fiber scheduler, fibers[MAX_THREADS], *idle[MAX_THREADS], *running;
static int n_fibers, n_idle;

static void go(struct fiber *to)
{
	struct fiber *from = running;

	running = to;
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_start_switch_fiber(&from->fake, to->stack, to->size);
#endif
	vfm_emu_switch(&from->place, &to->place);
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

/* ---- the threads of a block ---- */

static enum state state[MAX_THREADS];
static struct fiber *on[MAX_THREADS]; /* bytes of the waiting lanes */
static uint3 idx[MAX_THREADS];
static uint64_t lane_in[MAX_THREADS], lane_out[MAX_THREADS];
alignas(16) static unsigned char shared[MAX_SHARED];
static bool backwards;
void (*vfm_emu_launched)(const char *kernel);
static int me, warp_from, warp_n, cursor; /* the running thread; the running warp and its progress */
static void (*body)(void *ctx);
static void *body_ctx;

void vfm_emu_die(const char *why)
{
	fprintf(stderr, "emulated kernel: %s (block %u,%u,%u of %u,%u,%u; thread %u,%u,%u of %u,%u,%u)\n", why,
		blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z, threadIdx.x, threadIdx.y,
		threadIdx.z, blockDim.x, blockDim.y, blockDim.z);
	abort();
}

void vfm_emu_backwards(bool yes)
{
	backwards = yes;
}

static int lane_at(int k)
{
	return warp_from + (backwards ? warp_n - 1 - k : k);
}

static void become(int i)
{
	me = i;
	threadIdx = idx[i];
}

/* Makes variables that a thread reads before it has set them NaN, where they are not in registers. */
__attribute__((noinline)) static void poison_stack(void)
{
	char frames[2048];

	memset(frames, 0xff, sizeof(frames));
	__asm__ volatile("" : : "r"(frames) : "memory");
}

static void fiber_main(void)
{
#ifdef __SANITIZE_ADDRESS__
	__sanitizer_finish_switch_fiber(NULL, &scheduler.stack, &scheduler.size);
#endif
	for (;;) {
		for (;;) {
			poison_stack();
			body(body_ctx);
			state[me] = DONE;
			if (cursor + 1 >= warp_n || state[lane_at(cursor + 1)] != NEW)
				break;
			become(lane_at(++cursor));
		}
		idle[n_idle++] = running;
		go(&scheduler);
	}
}

static struct fiber *fiber_new(void)
{
	static char *stacks;
	struct fiber *f = &fibers[n_fibers];

	if (!stacks) {
		stacks = (char *)mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (stacks == MAP_FAILED)
			vfm_emu_die("no memory for the fibers");
	}
	f->stack = stacks + (size_t)n_fibers * STACK;
	mprotect((void *)f->stack, GUARD, PROT_NONE);
	/* At different offsets in their pages, to avoid cache conflicts. */
	f->size = STACK - (size_t)(n_fibers % 32) * 576;
	place_init(&f->place, (char *)f->stack, f->size, fiber_main);
	n_fibers++;
	return f;
}

static void yield(enum state why)
{
	int i = me;

	state[i] = why;
	on[i] = running;
	go(&scheduler);
}

void *vfm_emu_shared(void)
{
	return shared;
}

void vfm_emu_barrier(void)
{
	yield(AT_BARRIER);
}

const uint64_t *vfm_emu_lanes(uint64_t mine)
{
	lane_in[me] = mine;
	yield(AT_LANES);
	return lane_out + me / 32 * 32;
}

/* Runs until every thread of the warp is done or at the barrier. */
static void run_warp(int from, int n)
{
	int waiting;

	warp_from = from, warp_n = n;
	do {
		for (cursor = 0; cursor < n; cursor++) {
			int i = lane_at(cursor);

			if (state[i] != NEW && state[i] != READY)
				continue;
			become(i);
			go(state[i] == READY ? on[i] : n_idle ? idle[--n_idle] : fiber_new());
		}
		waiting = 0;
		for (int i = from; i < from + n; i++)
			waiting += state[i] == AT_LANES;
		if (waiting == 0)
			return;
		if (waiting != 32)
			vfm_emu_die("a shuffle, vote or __syncwarp that not all 32 lanes of a warp reached");
		memcpy(lane_out + from, lane_in + from, 32 * sizeof(*lane_in));
		for (int i = from; i < from + 32; i++)
			state[i] = READY;
	} while (waiting);
}

static void run_block(int n)
{
	int waiting;

	for (int i = 0; i < n; i++)
		state[i] = NEW;
	do {
		for (int w = 0; w < n; w += 32) {
			int at = backwards ? (n - 1) / 32 * 32 - w : w;

			run_warp(at, n - at < 32 ? n - at : 32);
		}
		waiting = 0;
		for (int i = 0; i < n; i++)
			waiting += state[i] == AT_BARRIER;
		if (waiting && waiting != n)
			vfm_emu_die("a __syncthreads that not all threads of the block reached");
		for (int i = 0; waiting && i < n; i++)
			state[i] = READY;
	} while (waiting);
}

void vfm_emu_run(const char *kernel, dim3 grid, dim3 block, size_t smem, void (*thread)(void *ctx), void *ctx)
{
	uint64_t n = (uint64_t)block.x * block.y * block.z, blocks = (uint64_t)grid.x * grid.y * grid.z;

	if (vfm_emu_launched)
		vfm_emu_launched(kernel);
	gridDim = grid, blockDim = block;
	blockIdx = threadIdx = {0, 0, 0};
	if (n == 0 || n > MAX_THREADS || block.z > 64 || grid.y > 65535 || grid.z > 65535 || grid.x == 0 ||
		grid.x > 0x7fffffff || grid.y == 0 || grid.z == 0)
		vfm_emu_die("invalid configuration argument");
	if (smem > MAX_SHARED)
		vfm_emu_die("too much dynamic shared memory");
	for (unsigned i = 0; i < n; i++)
		idx[i] = {i % block.x, i / block.x % block.y, i / block.x / block.y};
	running = &scheduler;
	body = thread, body_ctx = ctx;
	for (uint64_t i = 0; i < blocks; i++) {
		uint64_t b = backwards ? blocks - 1 - i : i;

		blockIdx = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y)};
		memset(shared, 0xa5, smem);
		run_block((int)n);
	}
}
