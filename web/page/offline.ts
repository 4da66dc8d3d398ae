/** The page's side of the service worker, which makes it work without a network. */

import { $ } from "./dom.js";

/** Starts the service worker. The promise ends when all files of the page are kept; its value tells whether
 * they are. */
export async function keepOffline(): Promise<boolean> {
  const { serviceWorker } = navigator;
  if (!serviceWorker) return false;
  try {
    const registration = await serviceWorker.register("service-worker.js");
    const offer = (): void => {
      if (!registration.waiting || !serviceWorker.controller) return;
      $("update").hidden = false;
      $("take-update").onclick = () => {
        serviceWorker.addEventListener("controllerchange", () => location.reload());
        registration.waiting?.postMessage("take over");
      };
    };
    registration.addEventListener("updatefound", () => {
      registration.installing?.addEventListener("statechange", offer);
    });
    offer();
    return await active(registration);
  } catch {
    return false; // private windows and settings of the browser forbid it
  }
}

/** Whether the first installation succeeds. */
async function active(registration: ServiceWorkerRegistration): Promise<boolean> {
  const worker = registration.active ?? registration.waiting ?? registration.installing;
  if (!worker || registration.active) return worker !== null;
  return new Promise((resolve) => {
    worker.addEventListener("statechange", () => {
      if (worker.state === "activated") resolve(true);
      if (worker.state === "redundant") resolve(false);
    });
  });
}

/** Deletes the page's files from the storage. */
export async function forgetOffline(): Promise<void> {
  const registration = await navigator.serviceWorker?.getRegistration();
  await registration?.unregister();
  const scope = new URL("./", location.href).href;
  for (const name of await caches.keys())
    if (name.startsWith(`tilewright-page ${scope} `)) await caches.delete(name);
}
