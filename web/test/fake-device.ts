/** A GPUDevice that computes nothing and counts what is asked of it. */

interface FakeBuffer {
  size: number;
  usage: number;
  destroy(): void;
  unmap(): void;
  mapAsync(): Promise<void>;
  getMappedRange(at?: number, size?: number): ArrayBuffer;
}

export class FakeDevice {
  readonly counts = { buffers: 0, groups: 0, pipelines: 0, dispatches: 0, submissions: 0, reads: 0 };
  /** Bytes for buffers; more are out of memory. */
  memory = 1 << 20;
  /** The kernel that the compiler refuses. */
  refuse = "";
  beforeMap: () => void = () => undefined;
  lose: (message: string) => void = () => undefined;
  readonly device: GPUDevice;

  constructor() {
    const { counts } = this;
    const scopes: (GPUError | null)[] = [];
    let isLost = false;
    let used = 0;
    const lost = new Promise<GPUDeviceLostInfo>((resolve) => {
      this.lose = (message) => {
        isLost = true;
        resolve({ message, reason: "unknown" } as GPUDeviceLostInfo);
      };
    });
    const pass = {
      setPipeline: () => undefined,
      setBindGroup: () => undefined,
      dispatchWorkgroups: () => void counts.dispatches++,
      end: () => undefined,
    };
    this.device = {
      lost,
      features: new Set(),
      limits: {
        maxStorageBuffersPerShaderStage: 8,
        maxBufferSize: 1 << 20,
        maxStorageBufferBindingSize: 1 << 20,
        maxComputeWorkgroupsPerDimension: 65535,
      },
      pushErrorScope: () => void scopes.push(null),
      popErrorScope: async () => scopes.pop() ?? null,
      createBuffer: ({ size, usage }: GPUBufferDescriptor): FakeBuffer => {
        counts.buffers++;
        if (usage & GPUBufferUsage.STORAGE) used += size;
        if (used > this.memory && scopes.length)
          scopes[scopes.length - 1] = { message: `${size} bytes` } as GPUError;
        return {
          size,
          usage,
          destroy: () => {
            if (usage & GPUBufferUsage.STORAGE) used -= size;
          },
          unmap: () => undefined,
          mapAsync: async () => {
            counts.reads++;
            this.beforeMap();
            await Promise.resolve();
            if (isLost) throw new Error("the buffer was destroyed");
          },
          getMappedRange: (_, length = size) => new ArrayBuffer(length),
        };
      },
      createBindGroupLayout: () => ({}),
      createPipelineLayout: () => ({}),
      createBindGroup: () => {
        counts.groups++;
        return {};
      },
      createShaderModule: () => ({
        getCompilationInfo: async () => ({
          messages: [{ type: "error", message: "unknown type", lineNum: 3 }],
        }),
      }),
      createComputePipelineAsync: async ({ label }: GPUComputePipelineDescriptor) => {
        counts.pipelines++;
        if (label === this.refuse) throw new Error("invalid");
        return {};
      },
      createCommandEncoder: () => ({
        beginComputePass: () => pass,
        copyBufferToBuffer: () => undefined,
        clearBuffer: () => undefined,
        finish: () => ({}),
      }),
      queue: { writeBuffer: () => undefined, submit: () => void counts.submissions++ },
      destroy: () => undefined,
    } as unknown as GPUDevice;
  }
}
