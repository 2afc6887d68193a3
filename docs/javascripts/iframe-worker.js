// Search from a folder: browsers refuse workers to pages of file:, so a hidden frame takes the part.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      frame.srcdoc = "<!doctype html>";
      frame.addEventListener("load", () => this.start(frame.contentWindow, address), { once: true });
      document.body.append(frame);
    }

    start(inside, address) {
      // What the script sends goes to whoever made this worker. Later, as messages of workers do: a
      // reply within the call that asked would find its asker half-way.
      inside.postMessage = (data) =>
        setTimeout(() => {
          const event = new MessageEvent("message", { data: structuredClone(data) });
          this.dispatchEvent(event);
          this.onmessage?.(event); // a property, which plain event targets do not call
        });
      const script = inside.document.createElement("script");
      script.src = address;
      script.addEventListener("load", () => {
        this.inside = inside;
        this.waiting.forEach((data) => this.postMessage(data));
        this.waiting = [];
      });
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (!this.inside) this.waiting.push(data);
      else {
        const copied = structuredClone(data);
        setTimeout(() => this.inside.dispatchEvent(new MessageEvent("message", { data: copied })));
      }
    }

    terminate() {}
  };
}
